"""The version number of the package."""

__version__ = "1.0.0"
