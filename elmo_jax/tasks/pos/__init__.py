"""Part-of-speech tagging, the probe of the paper's section 5.3."""
