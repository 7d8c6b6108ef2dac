"""Programs that are run by hand; the docstring of each module says how."""
