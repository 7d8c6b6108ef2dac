"""Measures speed: the benchmark (`make bench`), and what each optimization gains alone (`make levers`)."""
