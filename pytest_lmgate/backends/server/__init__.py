"""The engine server: a model behind an OpenAI-compatible HTTP server, for likelihoods and texts."""
