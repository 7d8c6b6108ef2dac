"""Texts that come as Python packages."""
