"""Named-entity recognition (paper, section 4)."""
