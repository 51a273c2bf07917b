"""What importing the package costs, and its public names."""

from __future__ import annotations

import subprocess
import sys

from pytest_lmgate.metrics import texts


def test_importing_the_package_loads_no_heavy_library() -> None:
    code = (
        "import sys, pytest_lmgate.metrics.texts\n"
        "heavy = {'torch', 'transformers', 'datasets', 'pytest', 'sacrebleu', 'rapidfuzz', 'scipy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_public_names_are_these() -> None:
    assert texts.__all__ == [
        "PairedBootstrap",
        "ScoredRow",
        "TextMetric",
        "bleu",
        "chrf",
        "collected_metrics",
        "exact",
        "found_metric",
        "paired_bootstrap",
        "ratio",
        "rouge",
        "row_scores",
        "row_statistics",
        "ter",
        "text_score",
        "worst_rows",
    ]
    assert all(hasattr(texts, name) for name in texts.__all__)
