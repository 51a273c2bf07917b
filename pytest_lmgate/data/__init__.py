"""Datasets: their readers, texts with digests, prompts with examples, and tags."""
