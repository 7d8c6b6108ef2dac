"""Analyses what the layers of a biLM represent: word senses, parts of speech, and neighbours of words in context."""
