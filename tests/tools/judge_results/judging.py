"""Calls ``lmgate judge`` on files, which tests copy, change and write."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from pytest_lmgate.cli.app import app
from pytest_lmgate.errors import LmgateError
from tests.data.test_corpus import WRITERS

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Judged:
    """What the command left: its exit code, its verdicts by id, and all that it says."""

    code: int
    gates: dict[str, Any]
    text: str


def judge(old: Path, new: Path, *options: str) -> Judged:
    outcome = CliRunner().invoke(app, ["judge", str(old), str(new), "--json", "--tolerance=5%", *options])
    if isinstance(outcome.exception, LmgateError):
        return Judged(3, {}, str(outcome.exception))
    assert outcome.exception is None or isinstance(outcome.exception, SystemExit), outcome.exception
    found = json.loads(outcome.stdout) if outcome.exit_code in (0, 1, 3) else {"gates": [], "remarks": []}
    said = "\n".join([*found["remarks"], *(gate.get("message", "") for gate in found["gates"]), outcome.stderr])
    return Judged(outcome.exit_code, {gate["id"]: gate for gate in found["gates"]}, said)


def copied(source: Path, to: Path) -> Path:
    """Copy a folder or a file, with the bar in names of lighteval's files that not every file system has."""
    copy = Path(shutil.copytree(source, to) if source.is_dir() else shutil.copy(source, to))
    for file in [*copy.rglob("*~*")]:
        file.rename(file.with_name(file.name.replace("~", "|")))
    return copy


def edit_json(path: Path, change: Callable[[Any], Any]) -> None:
    """Change a JSON file, or each line of a JSONL file; a change that returns None changes in place."""
    is_lines = path.suffix == ".jsonl"
    values = [json.loads(line) for line in path.read_text().splitlines()] if is_lines else json.loads(path.read_text())
    changed = change(values)
    values = values if changed is None else changed
    path.write_text("".join(json.dumps(each) + "\n" for each in values) if is_lines else json.dumps(values))


def table(path: Path, scores: Sequence[Any], column: str = "score", **columns: Sequence[Any]) -> Path:
    """Write rows with ids and scores as JSON lines, CSV or Parquet, as the file's suffix says."""
    made = {"id": [f"r{at}" for at in range(len(scores))], column: scores, **columns}
    rows = [dict(zip(made, row, strict=True)) for row in zip(*made.values(), strict=True)]
    WRITERS[f"rows{path.suffix}"](path, rows)
    return path
