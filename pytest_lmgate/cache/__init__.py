"""Fingerprints and the content-addressed store: a measurement is found again by its address alone."""
