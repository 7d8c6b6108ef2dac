"""Coreference resolution (paper, section 4)."""
