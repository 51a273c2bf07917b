"""Pure functions from additive statistics to a `Score`; no model, no torch, no pytest."""
