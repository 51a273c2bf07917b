"""What people call a metric of this package: its short name, its title, and the names that other tools give it."""

from __future__ import annotations

__all__ = ["RESERVED", "metric_called"]

import re

RESERVED = frozenset(
    {"accuracy", "bleu", "bpb", "chrf", "exact", "kl", "metric", "ppl", "pppl", "rouge", "ter", "top1"}
)
"""Names with a marker or a fixture of their own."""

# In letters alone.
_ALSO_CALLED = {
    "acc": "accuracy", "accnorm": "accuracy", "bitsperbyte": "bpb", "bits": "bpb", "chrfpp": "chrf", "em": "exact",
    "exactmatch": "exact", "kld": "kl", "kldiv": "kl", "kldivergence": "kl", "divergence": "kl", "perplexity": "ppl",
    "pseudoperplexity": "pppl", "rougel": "rouge", "rougelsum": "rouge", "rougen": "rouge", "sacrebleu": "bleu",
    "sametop": "top1", "top": "top1",
}  # fmt: skip


def metric_called(name: str) -> str | None:
    """Return the short name of the metric that `name` stands for, whatever its capitals, digits and hyphens."""
    letters = re.sub(r"[^a-z]", "", name.lower())
    return letters if letters in RESERVED else _ALSO_CALLED.get(letters)
