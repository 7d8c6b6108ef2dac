"""Measures speed: the benchmark (`make bench`), and what each optimisation gains alone (`make levers`)."""
