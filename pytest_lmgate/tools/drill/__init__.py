"""``lmgate drill``: which gates would notice which fault of their model."""
