"""The biLM: token encoder, projected LSTMs and softmax, independent of devices, data and training."""
