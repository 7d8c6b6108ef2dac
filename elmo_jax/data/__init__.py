"""Text to batches: text -> lexicon -> prepared corpus -> batches."""
