"""Engines: what each offers stands in `base`, which engines there are in `table`, and each has a folder or a file."""
