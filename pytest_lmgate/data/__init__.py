"""Corpora, and rows to token windows: pure planning, with digests."""
