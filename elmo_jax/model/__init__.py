"""The biLM: token encoder, projected LSTMs, softmax. Knows nothing of devices, data or training."""
