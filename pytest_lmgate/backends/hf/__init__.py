"""The engine transformers: checkpoints and models in memory, with the streaming likelihood."""
