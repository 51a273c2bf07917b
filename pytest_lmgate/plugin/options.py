"""The ``--lmgate-*`` options. Command line before ini (``lmgate_*``) before environment (``LMGATE_*``)."""

from __future__ import annotations

__all__ = [
    "add_options",
    "arguments",
    "baseline_file",
    "baseline_folder",
    "cache_folder",
    "flag",
    "history",
    "project_file",
    "reports",
    "session_options",
    "text",
    "unknown_variables",
    "verify",
    "workers",
]

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_lmgate.config import BASELINE_NAME, CACHE_NAME, is_on
from pytest_lmgate.errors import ConfigError, nearest
from pytest_lmgate.plugin.updates import UPDATES
from pytest_lmgate.report.formats.table import FORMATS

if TYPE_CHECKING:
    from pytest_lmgate.cache.remote import Address
    from pytest_lmgate.config.executor import Executor
    from pytest_lmgate.config.options import Options

_TEXTS = {
    "config": ("FILE", "lmgate.yaml to use (default: the nearest one from a test's own folder upward)"),
    "cache": ("FOLDER", f"folder of measurements (default: {CACHE_NAME} in rootdir); LMGATE_CACHE_KEY signs it"),
    "remote-cache": ("URL", "second level of the cache, for several machines: s3://, gs://, file:// and so on"),
    "baseline": ("FILE", f"baseline of no_regression gates (default: {BASELINE_NAME} beside lmgate.yaml)"),
    "history": ("FOLDER", "folder or URI that gets one record of each run, for lmgate history and the HTML report"),
    "verify": ("N", "measure N cache hits again, drawn at random, and fail if they differ: a number, or all"),
    "executor": ("RAY", "run models on a Ray cluster: ray, or ray://host:port, with ?workers=N&num_gpus=1 and so on"),
    "device": ("DEVICE", "device of models whose entry names none: auto, cuda, mps, cpu"),
}
_FLAGS = {
    "refresh": "measure again whatever the gates need",
    "remote-cache-readonly": "read the remote cache and write nothing to it, as for pull requests from forks",
    "offline": "never use the network; what is missing is an error",
    "fail-fast": "stop a measurement as soon as its partial sum proves the limit broken",
    "strict": "fail wherever a gate is inconclusive",
    "holm": "correct no_regression gates for how many they are (Holm)",
    "require-all": "refuse a session that leaves gates of lmgate.yaml out",
    "explain-cache": "say per gate whether the cache had it, and if not which ingredient changed",
}


def add_options(parser: pytest.Parser) -> None:
    """Declare the options and their ini keys."""
    group = parser.getgroup("lmgate", "language model gates (with the environment variable of each option)")
    for name, (metavar, words) in _TEXTS.items():
        group.addoption(f"--lmgate-{name}", metavar=metavar, help=f"{words} [{_key(name).upper()}]")
        parser.addini(_key(name), words, default=None)
    for name, words in _FLAGS.items():
        group.addoption(f"--lmgate-{name}", action="store_true", default=None, help=f"{words} [{_key(name).upper()}=1]")
        parser.addini(_key(name), words, default=None)
    # Not for ini files or the environment: a session that writes the baseline judges nothing by it.
    for name, words in UPDATES.items():
        group.addoption(f"--lmgate-{name}", action="store_true", default=False, help=words)
    group.addoption(
        "--lmgate-report",
        action="append",
        metavar="TYPE:DEST",
        help=f"write the verdicts: {_forms()}; - as FILE is stdout (repeatable) [LMGATE_REPORT]",
    )
    parser.addini("lmgate_report", "reports to write, TYPE:DEST each", type="linelist", default=[])
    group.addoption("--lmgate-plan", action="store_true", default=False, help="say what would be measured; run no test")
    group.addoption("--no-lmgate", action="store_true", default=False, help="skip every test that needs a measurement")


def session_options(config: pytest.Config, run: str) -> Options:
    """Return the options of a session in the run of this id, which everything that measures reads.

    Raises:
        pytest.UsageError: One is not what it should be; ConfigError says the same.
    """
    from pytest_lmgate.config.cache_key import CacheKey
    from pytest_lmgate.config.options import Options

    return Options(
        cache=cache_folder(config),
        remote_cache=text(config, "remote-cache"),
        remote_cache_readonly=flag(config, "remote-cache-readonly"),
        run=run,
        refresh=flag(config, "refresh"),
        offline=flag(config, "offline"),
        device=text(config, "device"),
        executor=_executor(config),
        # What was stopped could not be compared with a whole measurement.
        fail_fast=flag(config, "fail-fast") and not verify(config),
        workers=workers(config),
        worker=_worker(config),
        explain_cache=flag(config, "explain-cache"),
        strict=flag(config, "strict"),
        verify=verify(config),
        cache_key=CacheKey.from_environment(),
        arguments=arguments(config),
    )


def _executor(config: pytest.Config) -> Executor | None:
    """Return where models run, or raise ConfigError; each worker of xdist would ask for workers of its own."""
    from pytest_lmgate.config.executor import Executor

    given = text(config, "executor")
    if given and workers(config) > 1:
        raise pytest.UsageError("--lmgate-executor: its workers share the reading already: leave out -n")
    return Executor.parse(given) if given else None


def text(config: pytest.Config, name: str) -> str | None:
    """Return an option that is text, or None where it is not set."""
    for value in (config.getoption(f"--lmgate-{name}"), config.getini(_key(name)), os.environ.get(_key(name).upper())):
        if value:
            return str(value)
    return None


def unknown_variables() -> list[str]:
    """Say of each environment variable that begins as ours do and is none of them which one may be meant."""
    prefix, known = "LMGATE_", {name.replace("-", "_").upper() for name in (*_TEXTS, *_FLAGS, "report", "cache-key")}
    problems = []
    for name in sorted(each.removeprefix(prefix) for each in os.environ if each.startswith(prefix)):
        if name not in known:
            hint = nearest(name, known).replace("'", f"'{prefix}", 1)
            problems.append(
                f"the environment variable {prefix}{name} is none of this plugin's{hint}: correct it or unset it; one "
                f"of your own needs a name that does not begin with {prefix}"
            )
    return problems


def arguments(config: pytest.Config) -> tuple[str, ...]:
    """Return the options on the command line that choose what is measured, and by what it is judged."""
    own = {f"--lmgate-{name}": config.getoption(f"--lmgate-{name}") for name in ("config", "baseline", "device")}
    pytests = {"--config-file": config.option.inifilename, "--rootdir": config.option.rootdir}
    return tuple(f"{option}={value}" for option, value in {**pytests, **own}.items() if value)


def project_file(config: pytest.Config) -> Path | None:
    """Return the lmgate.yaml that was named, if any: in the ini file relative to that file, else to where pytest is.

    Raises:
        pytest.UsageError: There is no such file.
    """
    here = config.invocation_params.dir
    folders = [
        (config.getoption("--lmgate-config"), here),
        (config.getini("lmgate_config"), config.inipath.parent if config.inipath else here),
        (os.environ.get("LMGATE_CONFIG"), here),
    ]
    file = next((Path(folder, Path(given).expanduser()) for given, folder in folders if given), None)
    if file and not file.exists():
        raise pytest.UsageError(f"{file}: cannot be read: No such file or directory; check --lmgate-config")
    return file


def cache_folder(config: pytest.Config) -> Path:
    """Return the folder of measurements: as it was named, relative to rootdir."""
    return config.rootpath / Path(text(config, "cache") or CACHE_NAME).expanduser()


def baseline_folder(config: pytest.Config, project: Path | None) -> str:
    """Return the folder of a project's baseline, relative to rootdir: that of its lmgate.yaml, where it was found.

    It is rootdir itself, an empty text, for an lmgate.yaml that was named or that is not below rootdir, and for all
    projects where the baseline was named.
    """
    if project is None or project_file(config) or text(config, "baseline"):
        return ""
    is_below = project.parent != config.rootpath and project.parent.is_relative_to(config.rootpath)
    return project.parent.relative_to(config.rootpath).as_posix() if is_below else ""


def baseline_file(config: pytest.Config, folder: str = "") -> tuple[Path, str]:
    """Return the baseline file of a folder, and what the ids of its gates begin with, which the file leaves out.

    So the entries are the same whether pytest's rootdir is the repository's or the project's.
    """
    named = Path(text(config, "baseline") or BASELINE_NAME).expanduser()
    return config.rootpath / folder / named, f"{folder}/" if folder else ""


def history(config: pytest.Config) -> Path | Address | None:
    """Return where the history is, a folder relative to rootdir or a URI; None where no run is recorded.

    Raises:
        pytest.UsageError: It is a URI that cannot be used.
    """
    given = text(config, "history")
    if not given:
        return None
    from pytest_lmgate.cache.remote import place_of

    try:
        return place_of(given, config.rootpath, "--lmgate-history", offline=flag(config, "offline"))
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None


def flag(config: pytest.Config, name: str) -> bool:
    """Return an option that is on or off.

    Raises:
        pytest.UsageError: The ini file or the environment says neither.
    """
    if config.getoption(f"--lmgate-{name}"):
        return True
    try:
        return is_on(_key(name), config.getini(_key(name)), os.environ.get(_key(name).upper()))
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None


def verify(config: pytest.Config) -> int:
    """Return how many cache hits this process is to measure again.

    Each worker of xdist measures as many: all hits may be in one, where all gates are of one model.

    Raises:
        pytest.UsageError: It is not a number, nor ``all``.
    """
    given = text(config, "verify") or "0"
    if given == "all":
        return sys.maxsize
    if not given.isdecimal():
        raise pytest.UsageError(f"--lmgate-verify: expected a number of cache hits, or all; got {given!r}")
    return int(given)


def workers(config: pytest.Config) -> int:
    """Return how many processes run the tests."""
    return int(getattr(config, "workerinput", {}).get("workercount", 1))


def _worker(config: pytest.Config) -> int | None:
    """Return the number of this worker, 1 for ``gw1``; None without xdist, or where the user named the worker."""
    found = re.fullmatch(r"gw(\d+)", str(getattr(config, "workerinput", {}).get("workerid")))
    return int(found[1]) if found else None


def reports(config: pytest.Config) -> list[tuple[str, str]]:
    """Return type and destination of each report to write.

    Environment variables in a destination are expanded, as in ``--junitxml``: no shell does that in ini files.

    Raises:
        pytest.UsageError: One is not ``TYPE:DEST``, its type is not known, or a variable is not set.
    """
    given: list[str] | None = config.getoption("--lmgate-report")
    from_environment = os.environ.get("LMGATE_REPORT", "").splitlines()
    return [_report(each) for each in given or config.getini("lmgate_report") or from_environment]


def _report(given: str) -> tuple[str, str]:
    kind, colon, destination = given.partition(":")
    if kind in FORMATS and not colon:
        destination = FORMATS[kind].destination
    if not destination or kind not in FORMATS:
        known = f"{', '.join(FORMATS)}{'' if kind in FORMATS else nearest(kind, FORMATS)}"
        raise pytest.UsageError(f"--lmgate-report: expected TYPE:DEST with TYPE one of {known}; got {given!r}")
    unset = [name for name in re.findall(r"\$(\w+|\{[^}]*\})", destination) if name.strip("{}") not in os.environ]
    if unset:
        raise pytest.UsageError(f"--lmgate-report {given}: the environment variable {unset[0].strip('{}')} is not set")
    return kind, os.path.expandvars(destination)


def _forms() -> str:
    return ", ".join(name if kind.destination else f"{name}:FILE" for name, kind in FORMATS.items())


def _key(name: str) -> str:
    return f"lmgate_{name.replace('-', '_')}"
