"""Arguments of gates that are more than plain values: fixtures, revisions, tolerances, sampling."""
