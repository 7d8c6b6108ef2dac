"""Textual entailment, SNLI (paper, section 4)."""
