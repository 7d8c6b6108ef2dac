"""Training: devices, state, optimizer, step, loop, evaluation, metrics."""
