"""Renders verdicts; computes none."""
