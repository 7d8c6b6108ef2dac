"""The fine-tuning of a trained biLM on the text of a domain."""
