"""The options for the command line only: those that write the baseline file, in CI only when forced, or run no gate."""

from __future__ import annotations

__all__ = ["CI_VARIABLES", "UPDATES", "require_command_line", "update"]

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

# And what each would do in every session.
_COMMAND_LINE_ONLY = {
    **{f"--lmgate-{name}": "every session would write the baseline" for name in UPDATES},
    "--lmgate-plan": "no session would run a test",
    "--no-lmgate": "no session would judge a gate",
}


def require_command_line(config: pytest.Config) -> None:
    """Refuse options that the ini file's ``addopts`` or PYTEST_ADDOPTS ask for, where each session would have them.

    Raises:
        pytest.UsageError: An option for the command line only is not from there.
    """
    if hasattr(config, "workerinput"):  # which has the options of its controller
        return
    for option, effect in _COMMAND_LINE_ONLY.items():
        if config.getoption(option) and option not in config.invocation_params.args:
            raise pytest.UsageError(
                f"{option}: expected on the command line, got it from addopts, PYTEST_ADDOPTS or a conftest, so "
                f"{effect}; remove it there"
            )


def update(config: pytest.Config) -> str:
    """Return what to write of the baseline: ``all``, ``new``, ``prune`` (names only), or nothing by an empty text.

    Raises:
        pytest.UsageError: Two are asked for, or in CI one that measures, or not on the command line.
    """
    require_command_line(config)
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
