"""What a model is asked to score: windows, choices, masked copies, and pairs of source and target. Pure."""
