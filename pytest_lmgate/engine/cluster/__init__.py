"""Models on the workers of a Ray cluster: a `Cluster` has its workers read what the loop makes batches of."""
