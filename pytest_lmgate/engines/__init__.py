"""Engines: what reads and writes tokens, each behind the seam of `base`; `registry` chooses one for a model."""
