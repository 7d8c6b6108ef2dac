"""Question answering, SQuAD (paper, section 4)."""
