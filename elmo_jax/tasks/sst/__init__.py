"""Sentiment classification of sentences, the Stanford Sentiment Treebank (paper, section 4)."""
