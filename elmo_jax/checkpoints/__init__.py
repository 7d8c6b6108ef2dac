"""The checkpoints that runs resume from, the exported parameter tree, and the published HDF5 format."""
