"""Fingerprints and the content-addressed store: what was measured once is found again, and nothing else ever is."""
