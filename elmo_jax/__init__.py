"""ELMo in JAX: pretrain a biLM, and use its word vectors."""
