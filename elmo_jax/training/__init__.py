"""The training of a biLM: devices, state, optimizer, step, loop, evaluation and report."""
