"""What the user asked: lmgate.yaml and markers' arguments, decoded into frozen, validated specs; nothing is loaded.

Where lmgate.yaml is found stands here, so that a session without gates knows it without importing YAML.
"""

from __future__ import annotations

__all__ = ["BASELINE_NAME", "CACHE_NAME", "FILE_NAME", "WRONG_NAME", "find_project_file"]

from pathlib import Path

FILE_NAME = "lmgate.yaml"
WRONG_NAME = "lmgate.yml"  # which nobody reads, and of which somebody should say so
CACHE_NAME = ".lmgate_cache"  # folder of measurements, in rootdir
BASELINE_NAME = "lmgate-baseline.json"  # baseline of no_regression gates, beside lmgate.yaml


def find_project_file(start: Path) -> Path | None:
    """Return the lmgate.yaml in `start` or in the nearest folder above it, if there is one."""
    return next((file for folder in (start, *start.parents) if (file := folder / FILE_NAME).is_file()), None)
