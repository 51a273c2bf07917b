"""Several runs: the history of each gate, and two runs side by side."""
