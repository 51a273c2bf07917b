"""Results that another tool measured, read as rows: a module a format, and the pairing of two runs.

Both gates and ``lmgate judge`` read them. So they are here, on a gate's way, and not with the tool or behind an entry
point: the two need the same code, and it imports nothing heavy.
"""
