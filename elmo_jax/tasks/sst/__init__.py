"""Sentiment of sentences in five classes: the biattentive classification network (SST-5)."""
