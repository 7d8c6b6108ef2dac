"""`elmo-jax bench`: how fast this machine trains, reads text, embeds and evaluates, at three sizes of the biLM."""
