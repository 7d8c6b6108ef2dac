"""What the layers of a biLM know: word senses, parts of speech, and the neighbours of a word in context."""
