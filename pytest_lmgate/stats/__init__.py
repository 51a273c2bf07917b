"""Statistics: additive sums of clusters, their noise, and comparisons of two models; no model in sight."""
