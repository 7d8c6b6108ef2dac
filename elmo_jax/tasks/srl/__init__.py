"""Semantic role labelling: eight interleaved highway LSTM layers (He et al. 2017) with ELMo."""
