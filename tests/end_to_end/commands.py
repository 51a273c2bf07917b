"""``lmgate`` as a process of its own in a project's folder, as `Project.run` runs pytest."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.end_to_end.projects import Outcome, environment
from tests.warm import run_warm, warm_python

MEASURE = ("init", "measure", "why")


def lmgate(
    folder: Path, *arguments: str, code: int = 0, env: Mapping[str, str] | None = None, typed: str = ""
) -> Outcome:
    """Run a command to its end and check its exit code."""
    python = warm_python(environment(), "transformers" if arguments[0] in MEASURE else "pytest")
    variables = environment() | dict(env or {})
    done = run_warm(python, "-m", "pytest_lmgate.cli", *arguments, folder=folder, environment=variables, typed=typed)
    return Outcome(done.returncode, done.stdout, done.stderr).expect(code)


def lmgate_json(folder: Path, *arguments: str, code: int = 0) -> Any:
    """Run a command with ``--json``, and return what it printed."""
    return json.loads(lmgate(folder, *arguments, "--json", code=code).out)
