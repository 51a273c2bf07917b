"""Log-likelihoods from hidden states, without holding the logits of a text."""
