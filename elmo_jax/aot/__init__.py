"""Ahead-of-time compilation of the training step for absent devices, and the analysis of the compiled program."""
