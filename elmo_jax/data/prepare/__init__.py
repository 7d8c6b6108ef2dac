"""Text to a prepared corpus."""
