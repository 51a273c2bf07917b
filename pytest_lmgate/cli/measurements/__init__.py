"""Commands for measurements: those that make them, and the one for the cache that keeps them."""
