"""Gates of lmgate.yaml that pytest did not collect: `pytest tests` leaves files beside the folder out, and is green.

Gates that the user leaves out on purpose are not named: ``-k``, ``-m`` and ``--deselect`` where the file is collected,
``--ignore``, node ids and ``--lf``.
"""

from __future__ import annotations

__all__ = ["hidden", "left_out"]

import os
from collections.abc import Collection
from pathlib import Path

import pytest

from pytest_lmgate.plugin import options
from pytest_lmgate.plugin.collection.yaml_items import asked_files, mentions_gates, nearest_files, placed


def left_out(config: pytest.Config, collected: Collection[Path]) -> list[str]:
    """Say of each lmgate.yaml that the given paths go by how many gates were not collected, and why.

    Gates were collected of the files `collected`, as `placed` returns them.

    Raises:
        ConfigError: One of the files is not what it should be as a whole.
    """
    if config.getoption("no_lmgate"):
        return []
    files = [file for file in asked_files(config) if placed(file) not in collected]
    return [told for file in files if (told := _left_out(config, file))]


def hidden(config: pytest.Config) -> list[str]:
    """Say of each lmgate.yaml with gates that the variable LMGATE_CONFIG hides which one that is."""
    given = os.environ.get("LMGATE_CONFIG")
    if not given or config.getoption("--lmgate-config") or config.getini("lmgate_config"):
        return []
    named = options.project_file(config)
    return [
        f"the environment variable LMGATE_CONFIG={given} hides the gates of {file}: unset it, or say --lmgate-config"
        for file in nearest_files(config)
        if file.exists() and named and not file.samefile(named) and mentions_gates(file)
    ]


def _left_out(config: pytest.Config, file: Path) -> str:
    if _is_meant(config, file) or not mentions_gates(file):
        return ""
    from pytest_lmgate.report.wording.counted import counted
    from pytest_lmgate.spec.yaml_gates import read_gates

    gates, problems = read_gates(file)
    count = len(gates) + len(problems)
    if not count:
        return ""
    inside = Path(os.path.relpath(file, config.invocation_params.dir))
    gates_were = f"{counted(count, 'gate')} of {file.name} {'were' if count != 1 else 'was'} not collected"
    return f"{gates_were} ({_why(config, file)}): add {inside} to pytest's arguments"


def _is_meant(config: pytest.Config, file: Path) -> bool:
    by_id = any("::" in argument for argument in config.args)
    return by_id or bool(
        getattr(config.option, "lf", False) or config.hook.pytest_ignore_collect(collection_path=file, config=config)
    )


def _why(config: pytest.Config, file: Path) -> str:
    here = config.invocation_params.dir
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return "pytest was given other paths"
    if not file.resolve().is_relative_to(here.resolve()):
        return f"pytest was called in {here.name}"
    return f"pytest does not walk into {file.parent.name}"
