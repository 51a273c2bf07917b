"""The files that ``lmgate init`` writes, as texts; nothing that is there is overwritten."""

from __future__ import annotations

__all__ = ["CI_FILES", "ci_text", "project_text", "require_absent", "test_text", "write_new"]

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pytest_lmgate.cli.init.proposal import Proposal
from pytest_lmgate.errors import ConfigError

_WORKFLOW = """\
# Written by `lmgate init`.
name: Model quality

on:
  push:
    branches: [main]
  pull_request:

permissions:
  contents: read

env:
  # pip takes torch with gigabytes of CUDA unless this variable of the repository names the index of PyTorch's CPU builds.
  PIP_EXTRA_INDEX_URL: ${{{{ vars.PIP_EXTRA_INDEX_URL }}}}

jobs:
  gates:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
        with:
          lfs: true
      - uses: actions/setup-python@v5
        with:
          python-version: "3.11"
      - run: python -m pip install {package}
      # A measurement is found only where model, text and settings are the same, so any earlier cache will do.
      # It is saved after a red run too, under a new name for each attempt, since a saved cache is never overwritten.
      - uses: actions/cache/restore@v4
        with:
          path: {cache}
          key: lmgate-${{{{ runner.os }}}}-${{{{ github.run_id }}}}-${{{{ github.run_attempt }}}}
          restore-keys: lmgate-${{{{ runner.os }}}}-
      - run: pytest --lmgate-require-all --lmgate-report github --lmgate-report json:report.json --lmgate-report 'markdown-append:$GITHUB_STEP_SUMMARY'
      - uses: actions/cache/save@v4
        if: always()
        with:
          path: {cache}
          key: lmgate-${{{{ runner.os }}}}-${{{{ github.run_id }}}}-${{{{ github.run_attempt }}}}
      - uses: actions/upload-artifact@v4
        if: always()
        with:
          name: lmgate-report
          path: {0}
"""  # noqa: E501 - as a shell has it

_PIPELINE = """\
# Written by `lmgate init`.
model-quality:
  image: python:3.11
  # A measurement is found only where model, text and settings are the same, so any earlier cache will do.
  cache:
    key: lmgate
    paths: [{cache}]
    when: always
  script:
    - python -m pip install {package}
    - pytest --lmgate-require-all --lmgate-report json:report.json --lmgate-report openmetrics:metrics.txt --junitxml junit.xml
  artifacts:
    when: always
    paths: [{0}]
    reports: {{metrics: {1}, junit: {2}}}
"""  # noqa: E501 - as a shell has it
CI_FILES = {"github": ".github/workflows/model-quality.yml", "gitlab": ".gitlab-ci.yml"}
"""Where a service looks for what its runners do, in the repository."""


def project_text(
    models: Mapping[str, Mapping[str, Any]],
    datasets: Mapping[str, Mapping[str, Any]],
    proposals: Sequence[Proposal],
    *,
    gates: bool,
) -> str:
    """Return lmgate.yaml: the entries of models and datasets and, if asked for, the gates with their reasons."""
    lines = ["# Written by `lmgate init`. Paths are relative to this file.", "models:"]
    lines += [f"  {_flow(name)}: {_flow(dict(entry))}" for name, entry in models.items()]
    lines += ["datasets:", *(f"  {_flow(name)}: {_flow(dict(entry))}" for name, entry in datasets.items())]
    if gates:
        lines.append("gates:")
        for proposal in proposals:
            lines += [f"  # {reason}" for reason in proposal.reasons]
            lines += [f"  - {marker}: {_flow(arguments)}" for marker, arguments in proposal.gates]
    return "\n".join(lines) + "\n"


def test_text(proposals: Sequence[Proposal], names: Mapping[str, str]) -> str:
    """Return a test file with a test for each model, whose name `names` gives."""
    blocks = ['"""Gates of the models of lmgate.yaml. Written by `lmgate init`."""\n\nimport pytest']
    for proposal in proposals:
        lines = [f"# {reason}" for reason in proposal.reasons]
        for marker, arguments in proposal.gates:
            given = [f"{name}=" * (name == "against") + _python(value) for name, value in arguments.items()]
            lines.append(f"@pytest.mark.{marker}({', '.join(given)})")
        lines += [f"def {names[proposal.model]}():", "    pass"]
        blocks.append("\n".join(lines))
    return "\n\n\n".join(blocks) + "\n"


def ci_text(service: str, extras: Iterable[str], folder: str, cache: str) -> str:
    """Return what the runners of a service do, a key of `CI_FILES`.

    Args:
        service: The service.
        extras: Of the package, which the models' engines need.
        folder: Where pytest is called, in the repository; ``.`` is the repository itself.
        cache: Folder of measurements, in the repository.
    """
    named = ",".join(sorted(set(extras)))
    package = f"'pytest-lmgate[{named}]'" if named else "pytest-lmgate"
    is_inner = folder != "."
    places = [_flow(f"{folder}/{name}" if is_inner else name) for name in ("report.json", "metrics.txt", "junit.xml")]
    if service == "github":
        text = _WORKFLOW.format(*places, package=package, cache=_flow(cache))
        where = f"    defaults:\n      run:\n        working-directory: {_flow(folder)}\n    steps:\n"
        return text.replace("    steps:\n", where) if is_inner else text
    text = _PIPELINE.format(*places, package=package, cache=_flow(cache))
    return text.replace("  script:\n", f"  script:\n    - {_flow(f'cd {shlex.quote(folder)}')}\n") if is_inner else text


def require_absent(files: Iterable[Path]) -> None:
    """Refuse to go on where one of the files is there.

    Raises:
        ConfigError: It names the file.
    """
    for file in files:
        if file.exists() or file.is_symlink():
            raise ConfigError(f"{file} is there already; lmgate init overwrites nothing: move it away, or edit it")


def write_new(file: Path, text: str) -> None:
    """Write a file that is not there yet.

    Raises:
        ConfigError: It is there, or cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error}") from error


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)
    return re.sub(r"\n\.\.\.$", "", text.strip())


def _python(value: object) -> str:
    text = repr(value)
    return f'"{text[1:-1]}"' if isinstance(value, str) and not re.search(r"[\"\\']", text[1:-1]) else text
