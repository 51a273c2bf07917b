"""Tasks of lm-evaluation-harness: imported as datasets and gates, and their own code as a metric."""
