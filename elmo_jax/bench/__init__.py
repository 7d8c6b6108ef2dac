"""Implements `elmo-jax bench`, which measures training, inference, evaluation and data at three sizes of the biLM."""
