"""``lmgate`` as a process of its own in a project's folder, as `Project.run` runs pytest."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.end_to_end.projects import Outcome, environment
from tests.warm import warm_python

MEASURE = ("init", "measure", "why")


def lmgate(
    folder: Path, *arguments: str, code: int = 0, env: Mapping[str, str] | None = None, typed: str = ""
) -> Outcome:
    """Run a command to its end and check its exit code."""
    python = warm_python(environment(), "transformers" if arguments[0] in MEASURE else "pytest")
    done = subprocess.run(
        [python, "-m", "pytest_lmgate.cli", *arguments],
        cwd=folder,
        env=environment() | dict(env or {}),
        input=typed,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Outcome(done.returncode, done.stdout, done.stderr).expect(code)


def lmgate_json(folder: Path, *arguments: str, code: int = 0) -> Any:
    """Run a command with ``--json``, and return what it printed."""
    return json.loads(lmgate(folder, *arguments, "--json", code=code).out)
