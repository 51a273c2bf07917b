"""What the names in a gate stand for: models, and rows of datasets."""
