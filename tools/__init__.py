"""What is run by hand: each module says how."""
