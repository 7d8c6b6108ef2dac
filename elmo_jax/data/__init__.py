"""The path from text to batches: text -> lexicon -> prepared corpus -> batches."""
