"""What is tried out on a model before its numbers are believed."""
