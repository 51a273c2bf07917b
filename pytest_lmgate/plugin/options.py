"""The ``--lmgate-*`` options. Command line before ini (``lmgate_*``) before environment (``LMGATE_*``)."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_lmgate.errors import ConfigError, nearest
from pytest_lmgate.report.formats import FORMATS, parse_report, shared_file
from pytest_lmgate.settings.options import (
    BASELINE_NAME,
    CACHE_NAME,
    OFF,
    OPTIONS,
    VARIABLES,
    is_on,
    key_of,
    named_project_file,
    text_of,
)

if TYPE_CHECKING:
    from pytest_lmgate.cache.remote import Address
    from pytest_lmgate.settings.session import Executor, Options

# Variables by which the common systems can be told; most set CI besides.
CI_VARIABLES = (
    "CI", "GITHUB_ACTIONS", "GITLAB_CI", "TF_BUILD", "JENKINS_URL", "BUILDKITE", "CIRCLECI", "TEAMCITY_VERSION",
)  # fmt: skip


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("lmgate", "language model gates")
    for name, option in OPTIONS.items():
        key = key_of(name)
        variable = f" [{key.upper()}{'' if option.metavar else '=1'}]" if name in VARIABLES else ""
        how: dict[str, Any] = {"metavar": option.metavar} if option.metavar else {"action": "store_true"}
        # pytest compares a destination that it has to find with those of all other options, in each session.
        group.addoption(f"--lmgate-{name}", dest=key, default=None, help=option.help + variable, **how)
        if not option.effect:
            parser.addini(key, option.help, default=None)
    forms = ", ".join(f"{name}{kind.usage}" for name, kind in FORMATS.items())
    words = f"write the verdicts: {forms}; - as FILE is stdout (repeatable)"
    group.addoption("--lmgate-report", action="append", metavar="TYPE:DEST", help=words)
    parser.addini("lmgate_report", "reports to write, each as TYPE:DEST", type="linelist", default=[])
    group.addoption("--no-lmgate", action="store_true", default=False, help="skip all tests that need a measurement")


def session_options(config: pytest.Config, run: str) -> Options:
    from pytest_lmgate.settings.session import CacheKey, Options

    return Options(
        cache=cache_folder(config),
        remote_cache=text(config, "remote-cache"),
        remote_cache_readonly=flag(config, "remote-cache-readonly"),
        run=run,
        refresh=flag(config, "refresh"),
        offline=flag(config, "offline"),
        device=text(config, "device"),
        executor=_executor(config),
        workers=workers(config),
        worker=_worker(config),
        explain_cache=flag(config, "explain-cache"),
        strict=flag(config, "strict"),
        verify=verify(config),
        cache_key=CacheKey.from_environment(),
        arguments=arguments(config),
    )


def _executor(config: pytest.Config) -> Executor | None:
    from pytest_lmgate.settings.session import Executor

    given = text(config, "executor")
    if given and workers(config) > 1:
        raise pytest.UsageError("--lmgate-executor: Ray already distributes the work: remove -n")
    return Executor.parse(given) if given else None


def text(config: pytest.Config, name: str) -> str | None:
    return text_of(name, config.getoption(f"--lmgate-{name}"), _ini(config, key_of(name)))


def _ini(config: pytest.Config, key: str) -> Any:
    try:
        return config.getini(key)
    except (TypeError, pytest.UsageError):  # [tool.pytest] of pytest 9 has true or 5 where it expects a text
        from pytest_lmgate.plugin.private import value_in_toml

        return value_in_toml(config, key)


def unknown_variables() -> list[str]:
    """Return a sentence for each unknown environment variable with our prefix."""
    prefix = "LMGATE_"
    known = {key_of(name)[7:].upper() for name in (*VARIABLES, "cache-key")}
    problems = []
    for name in sorted(each.removeprefix(prefix) for each in os.environ if each.startswith(prefix)):
        if name not in known:
            option = name.lower().replace("_", "-")
            hint = nearest(name, known).replace("'", f"'{prefix}", 1)
            if option in (*OPTIONS, "report"):
                hint = f"; write --lmgate-{option} on the command line or in PYTEST_ADDOPTS"
            problems.append(
                f"the environment variable {prefix}{name} is none of this plugin's{hint}: correct or unset it; your "
                f"own variables must not begin with {prefix}"
            )
    return problems


def arguments(config: pytest.Config) -> tuple[str, ...]:
    own = {f"--lmgate-{name}": config.getoption(f"--lmgate-{name}") for name in ("config", "baseline", "device")}
    pytests = {"--config-file": config.option.inifilename, "--rootdir": config.option.rootdir}
    return tuple(f"{option}={value}" for option, value in {**pytests, **own}.items() if value)


def project_file(config: pytest.Config) -> Path | None:
    """Return the lmgate.yaml given by option, if any; in an ini file it is relative to that file."""
    typed, ini = config.getoption("--lmgate-config"), config.getini("lmgate_config")
    file = named_project_file(typed, ini, config.inipath, config.invocation_params.dir)
    if file and not file.exists():
        raise pytest.UsageError(f"{file}: cannot be read: No such file or directory; check --lmgate-config")
    return file


def cache_folder(config: pytest.Config) -> Path:
    """Return the configured folder of measurements, relative to rootdir."""
    return config.rootpath / Path(text(config, "cache") or CACHE_NAME).expanduser()


def baseline_folder(config: pytest.Config, project: Path | None) -> str:
    """Return the folder of a project's baseline, relative to rootdir: that of its lmgate.yaml.

    It is rootdir (an empty text) if the lmgate.yaml or the baseline is given by option, or lies outside of rootdir.
    """
    if project is None or project_file(config) or text(config, "baseline"):
        return ""
    is_below = project.parent != config.rootpath and project.parent.is_relative_to(config.rootpath)
    return project.parent.relative_to(config.rootpath).as_posix() if is_below else ""


def baseline_file(config: pytest.Config, folder: str = "") -> tuple[Path, str]:
    """Return the baseline file, and the prefix of its gates' ids, which the file leaves out.

    So entries are the same whether pytest's rootdir is the repository's or the project's.
    """
    named = Path(text(config, "baseline") or BASELINE_NAME).expanduser()
    return config.rootpath / folder / named, f"{folder}/" if folder else ""


def history(config: pytest.Config) -> Path | Address | None:
    given = text(config, "history")
    if not given:
        return None
    from pytest_lmgate.cache.remote import place_of

    try:
        return place_of(given, config.rootpath, "--lmgate-history", offline=flag(config, "offline"))
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None


def flag(config: pytest.Config, name: str) -> bool:
    if config.getoption(f"--lmgate-{name}"):
        return True
    try:
        return is_on(name, _ini(config, key_of(name)))
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None


def verify(config: pytest.Config) -> int:
    """Return the number of cache hits to measure again.

    Each worker of xdist uses the same number: one worker may have all gates of a model.
    """
    given = text(config, "verify") or "0"
    if given == "all":
        return sys.maxsize
    if not given.isdecimal():
        raise pytest.UsageError(f"--lmgate-verify: expected a number of cache hits, or all; got {given!r}")
    return int(given)


def workers(config: pytest.Config) -> int:
    return int(getattr(config, "workerinput", {}).get("workercount", 1))


def _worker(config: pytest.Config) -> int | None:
    """Return the number of this worker, 1 for ``gw1``; None without xdist."""
    found = re.fullmatch(r"gw(\d+)", str(getattr(config, "workerinput", {}).get("workerid")))
    return int(found[1]) if found else None


def reports(config: pytest.Config) -> list[tuple[str, str]]:
    """Return type and destination of each report.

    Expand environment variables, as in ``--junitxml``, because no shell does in ini files.
    """
    given: list[str] | None = config.getoption("--lmgate-report")
    found = [_report(each) for each in given or config.getini("lmgate_report")]
    if twice := shared_file(found):
        raise pytest.UsageError(f"--lmgate-report: two reports go to {twice}: give each a file of its own")
    return found


def _report(given: str) -> tuple[str, str]:
    try:
        kind, destination = parse_report(given)
    except ConfigError as error:
        raise pytest.UsageError(f"--lmgate-report: {error}") from None
    unset = [name for name in re.findall(r"\$(\w+|\{[^}]*\})", destination) if name.strip("{}") not in os.environ]
    if unset:
        raise pytest.UsageError(f"--lmgate-report {given}: the environment variable {unset[0].strip('{}')} is not set")
    return kind, os.path.expandvars(destination)


def require_command_line(config: pytest.Config) -> None:
    """Refuse command-line options in ``addopts`` or PYTEST_ADDOPTS, where they would apply to each session."""
    if hasattr(config, "workerinput"):  # which has the options of its controller
        return
    effects = {f"--lmgate-{name}": option.effect for name, option in OPTIONS.items() if option.effect}
    for option, effect in {**effects, "--no-lmgate": "no session would judge a gate"}.items():
        if config.getoption(option) and option not in config.invocation_params.args:
            raise pytest.UsageError(
                f"{option}: expected on the command line, got it from addopts, PYTEST_ADDOPTS or a conftest, so "
                f"{effect}; remove it there"
            )


def update(config: pytest.Config) -> str:
    """Return what to write to the baseline: ``all``, ``new``, ``prune`` (names only), or an empty text."""
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
            f"--lmgate-update{'-new-only' * bool(new)}: refused in CI ({ci}={os.environ[ci]}), because a baseline "
            "measured on the change under test would always pass; run it where you can review and commit the file, or "
            "add --lmgate-force-update"
        )
    return "all" if every else "new" if new else ""
