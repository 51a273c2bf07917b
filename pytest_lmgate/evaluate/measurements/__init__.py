"""What is measured of a model: likelihoods, divergences, choices and generated texts."""
