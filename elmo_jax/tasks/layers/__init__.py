"""Layers that several task models use."""
