"""Keeps the layers of many sentences, and finds the neighbours of words in context."""
