"""Finds the neighbours of words in context."""
