"""Running models: loading, the streaming likelihood, batching. Torch is imported inside, never at import."""
