"""From texts to the token ids that a model reads: running texts and prompts."""
