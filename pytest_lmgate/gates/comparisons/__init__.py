"""Is a candidate worse than its reference? `paired` chooses the rule, `comparison` has the verdicts."""
