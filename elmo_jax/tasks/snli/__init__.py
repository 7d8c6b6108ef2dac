"""Textual entailment: the sequence model ESIM (SNLI)."""
