"""Semantic role labelling (paper, section 4)."""
