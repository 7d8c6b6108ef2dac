"""Fine-tuning: a trained biLM goes on with the text of a domain."""
