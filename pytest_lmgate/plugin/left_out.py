"""Gates of lmgate.yaml that pytest was led past: `pytest tests` collects no file beside the folder, and is green.

What the user leaves out on purpose is not told: ``-k``, ``-m`` and ``--deselect`` where the file is collected,
``--ignore``, node ids and ``--lf``.
"""

from __future__ import annotations

__all__ = ["left_out"]

import os
from pathlib import Path

import pytest

from pytest_lmgate.config import FILE_NAME
from pytest_lmgate.plugin import options
from pytest_lmgate.plugin.yaml_items import mentions_gates


def left_out(config: pytest.Config) -> str:
    """Say how many gates were not collected and why; to be asked only where their file was not. Empty for none."""
    file = options.project_file(config) or _nearest(config.rootpath)
    if file is None or config.getoption("no_lmgate") or _is_meant(config, file) or not mentions_gates(file):
        return ""
    from pytest_lmgate.errors import LmgateError
    from pytest_lmgate.spec.yaml_gates import read_gates

    try:
        gates, problems = read_gates(file)
    except LmgateError as error:
        return f"the gates of {file.name} were not collected, and cannot be read: {error}"
    count = len(gates) + len(problems)
    if not count:
        return ""
    here = config.invocation_params.dir
    inside = Path(os.path.relpath(file, here))
    gates_were = f"{count} gate{'s' * (count != 1)} of {file.name} {'were' if count != 1 else 'was'} not collected"
    return f"{gates_were} ({_why(config, file)}): add {inside} to pytest's arguments"


def _nearest(folder: Path) -> Path | None:
    """As `config.file.find_project_file`, whose module costs what sessions without gates do not pay."""
    return next((file for each in (folder, *folder.parents) if (file := each / FILE_NAME).is_file()), None)


def _is_meant(config: pytest.Config, file: Path) -> bool:
    by_id = any("::" in argument for argument in config.args)
    return by_id or bool(getattr(config.option, "lf", False)) or _is_ignored(config, file)


def _is_ignored(config: pytest.Config, file: Path) -> bool:
    return bool(config.hook.pytest_ignore_collect(collection_path=file, config=config))


def _why(config: pytest.Config, file: Path) -> str:
    here = config.invocation_params.dir
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return "pytest was given other paths"
    if not file.resolve().is_relative_to(here.resolve()):
        return f"pytest was called in {here.name}"
    return f"pytest does not walk into {file.parent.name}"
