"""``lmgate check``: whether lmgate.yaml is what it should be, before anything is measured; for pre-commit."""

from __future__ import annotations

__all__ = ["check"]

from pathlib import Path
from typing import Annotated

import typer

from pytest_lmgate.cli.output import AsJson, show
from pytest_lmgate.cli.places import root
from pytest_lmgate.errors import ConfigError, LmgateError
from pytest_lmgate.report.wording.counted import counted


def check(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Files to check (default: the nearest lmgate.yaml)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read models, datasets and gates of lmgate.yaml, and name each error with its line; exit code 1 for any."""
    found = {str(file): _checked(file) for file in files or [_nearest()]}
    lines = []
    for counts, problems, warnings in found.values():
        lines += [*(problems or [counts]), *(f"warning: {said}" for said in warnings)]
    problems = [problem for _, said, _ in found.values() for problem in said]
    facts = {
        name: {"ok": not said, "problems": said, "warnings": warnings} for name, (_, said, warnings) in found.items()
    }
    show({"ok": not problems, "files": facts}, "\n".join(lines), as_json=as_json)
    if problems:
        raise typer.Exit(1)


def _nearest() -> Path:
    from pytest_lmgate.config import find_project_file
    from pytest_lmgate.config.file import Project

    here = root()
    file = here.project_file(None) or find_project_file(here.start)
    if file is None:
        raise ConfigError(f"{Project(here.start).origin}; name the file")
    return file


def _checked(file: Path) -> tuple[str, list[str], list[str]]:
    """Return what is in a file, in words, and messages: what is wrong with it, and what may be."""
    from pytest_lmgate.cli.measurements.measuring import measuring
    from pytest_lmgate.config.file import load_project
    from pytest_lmgate.metrics.table import METRICS, metric_hint
    from pytest_lmgate.spec.yaml_gates import read_gates

    try:
        project = load_project(file.parent, file)
        gates, problems = read_gates(file)
    except LmgateError as error:
        return "", [str(error)], []
    warnings = []
    with measuring(project=project) as bench:
        for entry in gates:
            if (metric := entry.gate.evaluation.metric) not in METRICS:  # a user's own, which only pytest knows
                if hint := metric_hint(metric):
                    own = f"{metric!r} is no metric of lmgate{hint}, and has to be registered by a conftest.py"
                    warnings.append(entry.problem(ConfigError.of("metric", own)))
                continue
            try:
                bench.evaluator.check(entry.gate)
            except LmgateError as error:
                problems.append(entry.problem(error))
    spec = project.spec
    counts = {"model": len(spec.models), "dataset": len(spec.datasets), "gate": len(gates)}
    return f"{file}: {', '.join(counted(number, what) for what, number in counts.items())}", problems, warnings
