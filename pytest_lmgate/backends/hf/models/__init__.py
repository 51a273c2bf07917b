"""From files or objects in memory to a model that runs."""
