"""Why a model got worse, layer by layer, and which layers to keep in the original's precision."""
