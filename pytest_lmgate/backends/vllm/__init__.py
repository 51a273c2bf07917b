"""The engine vLLM, in a process of its own: causal models from folders and the hub, likelihoods and texts."""
