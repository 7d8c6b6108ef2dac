"""Using a trained biLM: vectors of sentences and of words."""
