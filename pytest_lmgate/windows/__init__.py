"""What a model is asked to score: texts to tokens by a protocol, windows, choices, masked copies and pairs. Pure."""
