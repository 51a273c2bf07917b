"""Entries of a workplace's lmgate.yaml and files of rows for them, and what lm-evaluation-harness finds."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.settings.gate_options import WindowProtocol
from pytest_lmgate.settings.gates import EvaluationSpec
from tests.end_to_end.projects import environment
from tests.warm import warm_python

PROTOCOL = WindowProtocol(max_length=16, stride=8)


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


def by_the_harness(code: str, cache: Path, *arguments: str) -> dict[str, Any]:
    """Run code in which lm-evaluation-harness finds something, and return what it prints behind ``found:``."""
    done = subprocess.run(
        [warm_python(environment(), "torch"), "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HOME": str(cache), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("found:")] or [done.stderr]
    found: dict[str, Any] = json.loads(line.removeprefix("found:"))
    return found


def perplexity(
    evaluator: Evaluator, model: Any, dataset: Any, protocol: WindowProtocol, *, metric: str = "ppl", **how: Any
) -> Score:
    """Measure a perplexity, as the fixture `ppl_of` does."""
    return evaluator.evaluate(EvaluationSpec(metric, model, dataset, protocol), **how)
