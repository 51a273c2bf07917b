"""What the terminal shows: progress and a plan before the verdicts, the summary after them."""
