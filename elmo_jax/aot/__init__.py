"""The training step compiled ahead of time: for devices that are not here, from shapes alone, and read."""
