"""Entries of a workplace's lmgate.yaml, and files of rows for them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.settings.gates import EvaluationSpec
from pytest_lmgate.settings.requests import Protocol


def write_rows(workplace: Any, name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows as JSON lines; return the path within the workplace."""
    path = f"data/{name}.jsonl"
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (workplace.folder / path).write_text(lines, encoding="utf-8")
    return path


def entry(workplace: Any, name: str, *, section: str = "datasets", **keys: Any) -> None:
    """Add an entry, or keys to one that is there."""
    file: Path = workplace.folder / "lmgate.yaml"
    spec = yaml.safe_load(file.read_text(encoding="utf-8"))
    spec[section].setdefault(name, {}).update(keys)
    file.write_text(yaml.safe_dump(spec, allow_unicode=True), encoding="utf-8")


def perplexity(
    evaluator: Evaluator, model: Any, dataset: Any, protocol: Protocol, *, metric: str = "ppl", **how: Any
) -> Score:
    """Measure a perplexity, as the fixture `ppl_of` does."""
    return evaluator.evaluate(EvaluationSpec(metric, model, dataset, protocol), **how)
