"""Tasks of lm-evaluation-harness, frozen into a dataset's rows and entry, and scored by their own code."""
