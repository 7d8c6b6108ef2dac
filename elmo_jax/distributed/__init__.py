"""Processes and devices: how they find each other, what they agree on, and how arrays lie on them."""
