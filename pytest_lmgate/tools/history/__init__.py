"""Runs side by side and one after the other: compare, history and bisect."""
