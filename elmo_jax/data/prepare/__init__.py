"""The preparation of a corpus from text."""
