"""Sample texts that come as Python packages."""
