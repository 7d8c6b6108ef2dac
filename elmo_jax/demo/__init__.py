"""The page of `elmo-jax demo`."""
