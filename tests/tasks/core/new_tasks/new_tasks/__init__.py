"""Two tasks for elmo_jax in a package outside of it."""
