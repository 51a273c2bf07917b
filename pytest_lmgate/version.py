"""The version of this package, a leaf that everything may import."""

__version__ = "0.1.0"
