"""The options that write the baseline file: on the command line only, and in CI only when forced."""

from __future__ import annotations

__all__ = ["CI_VARIABLES", "UPDATES", "update"]

import os

import pytest

from pytest_lmgate.config import OFF

# Variables by which the common systems can be told; most set CI besides.
CI_VARIABLES = (
    "CI", "GITHUB_ACTIONS", "GITLAB_CI", "TF_BUILD", "JENKINS_URL", "BUILDKITE", "CIRCLECI", "TEAMCITY_VERSION",
)  # fmt: skip
UPDATES = {
    "update": "write what no_regression gates measure to the baseline file, instead of judging by it",
    "update-new-only": "write the baseline of gates that have none yet; judge all others",
    "force-update": "allow updates in CI (environment variables such as CI, GITHUB_ACTIONS, GITLAB_CI)",
    "prune": "remove baselines that no gate uses, and give those of renamed gates the new name; judge by all others",
}


def update(config: pytest.Config) -> str:
    """Return what to write of the baseline: ``all``, ``new``, ``prune`` (names only), or nothing by an empty text.

    Raises:
        pytest.UsageError: Two are asked for, or in CI one that measures, or not on the command line.
    """
    _require_command_line(config)
    every, new = config.getoption("--lmgate-update"), config.getoption("--lmgate-update-new-only")
    if every and new:
        raise pytest.UsageError("--lmgate-update and --lmgate-update-new-only: expected one of them, got both")
    if config.getoption("--lmgate-prune"):
        if every or new:
            raise pytest.UsageError("--lmgate-prune and an update of the baseline: expected one of them, got both")
        return "prune"
    ci = next((name for name in CI_VARIABLES if os.environ.get(name, "").lower() not in OFF), None)
    if (every or new) and ci and not config.getoption("--lmgate-force-update"):
        raise pytest.UsageError(
            f"--lmgate-update{'-new-only' * bool(new)}: refused in CI ({ci}={os.environ[ci]}), where a baseline made "
            "from the change under test would let it pass; run it where the file can be looked at and committed, or "
            "add --lmgate-force-update"
        )
    return "all" if every else "new" if new else ""


def _require_command_line(config: pytest.Config) -> None:
    """Refuse an update that the ini file's ``addopts`` or PYTEST_ADDOPTS ask for: every session would be one."""
    if hasattr(config, "workerinput"):  # which has the options of its controller
        return
    for name in UPDATES:
        if config.getoption(f"--lmgate-{name}") and f"--lmgate-{name}" not in config.invocation_params.args:
            raise pytest.UsageError(
                f"--lmgate-{name}: expected on the command line, got it from addopts, PYTEST_ADDOPTS or a conftest, "
                "so every session would write the baseline; remove it there"
            )
