"""The one composer: what a gate names -> cache -> engine -> metric. Torch is imported only where a model must run."""
