"""Commands for runs that are over: their reports, history and commits, and the baseline that was accepted."""
