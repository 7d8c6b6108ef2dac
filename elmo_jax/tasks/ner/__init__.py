"""Named entity recognition: the biLSTM-CRF tagger (CoNLL-2003)."""
