"""Measures speed: the benchmark, `make bench`."""
