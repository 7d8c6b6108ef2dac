"""The use of a trained biLM: vectors of sentences and of words, and ELMo in task models."""
