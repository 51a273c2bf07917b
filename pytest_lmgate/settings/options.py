"""The options of pytest and of the command line, and where lmgate.yaml is; sessions without gates import this too.

An option is ``--lmgate-NAME`` on the command line and ``lmgate_name`` in ini files, in this order of precedence; last
come the few in `VARIABLES`, as ``LMGATE_NAME`` in the environment. pytest's options, those of ``lmgate`` and
docs/reference/options.md derive from the table.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pytest_lmgate.errors import ConfigError

FILE_NAME = "lmgate.yaml"
CACHE_NAME = ".lmgate_cache"  # folder of measurements, in rootdir
BASELINE_NAME = "lmgate-baseline.json"  # baseline of no_regression gates, next to lmgate.yaml
# How ini files and environment variables turn an option on and off, in small letters.
_ON = ("1", "true", "yes", "on")
OFF = ("", "0", "false", "no", "off")


# Options that an environment variable can set; PYTEST_ADDOPTS sets any that is not for the command line alone.
VARIABLES = ("cache", "offline", "require-all")


class Option(NamedTuple):
    """One option."""

    help: str  # what it does
    metavar: str = ""  # name of its value; empty for a flag
    effect: str = ""  # what it would do in every session, if only the command line may have it; else empty


_WRITES = "every session would write the baseline"
OPTIONS: Mapping[str, Option] = {
    "config": Option("lmgate.yaml to use (default: in a test's folder or the nearest above)", "FILE"),
    "cache": Option(f"folder of measurements (default: {CACHE_NAME} in rootdir); LMGATE_CACHE_KEY signs it", "FOLDER"),
    "remote-cache": Option("second cache for several machines: s3://, gs://, file:// and so on", "URL"),
    "baseline": Option(f"baseline of no_regression gates (default: {BASELINE_NAME} next to lmgate.yaml)", "FILE"),
    "history": Option("folder or URI for a record of each run, for lmgate history and the HTML report", "FOLDER"),
    "verify": Option("measure N random cache hits again (or all), and fail if they differ", "N"),
    "executor": Option(
        "run models on a Ray cluster: ray, or ray://host:port, with ?workers=N&num_gpus=1 and so on", "RAY"
    ),
    "device": Option("device of models whose entry names none: auto, cuda, mps, cpu", "DEVICE"),
    "refresh": Option("ignore the cache and measure again"),
    "remote-cache-readonly": Option("never write to the remote cache (the default in pull requests from forks)"),
    "offline": Option("never use the network; missing files are errors"),
    "strict": Option("treat INCONCLUSIVE as FAIL"),
    "require-all": Option(
        "refuse a session that does not collect all gates of lmgate.yaml, or has a gate that is parametrized with "
        "nothing; fail what requires: would skip"
    ),
    "explain-cache": Option("print for each gate: cache hit, or which ingredient changed"),
    "update": Option(
        "write the results of no_regression gates to the baseline instead of judging them", effect=_WRITES
    ),
    "update-new-only": Option("add baseline entries for gates that have none; judge all others", effect=_WRITES),
    "force-update": Option(
        "allow updates in CI (environment variables such as CI, GITHUB_ACTIONS, GITLAB_CI)", effect=_WRITES
    ),
    "prune": Option("remove baseline entries that no gate uses; judge as usual", effect=_WRITES),
    "plan": Option("print what would be measured; run no test", effect="no session would run a test"),
}


def key_of(name: str) -> str:
    """Return the name of an option in ini files; its environment variable, if any, is the same in capitals."""
    return f"lmgate_{name.replace('-', '_')}"


def _variable(name: str) -> str | None:
    return os.environ.get(key_of(name).upper()) if name in VARIABLES else None


def text_of(name: str, typed: object, ini: object) -> str | None:
    """Return the value of an option: as typed, else from the ini file, else from the environment; None if not set."""
    return next((str(each) for each in (typed, ini, _variable(name)) if each), None)


def is_on(name: str, ini: object) -> bool:
    """Return whether the ini file, or else the environment, turns an option on."""
    key = key_of(name)
    word = next((str(each) for each in (ini, _variable(name)) if each is not None), "")
    if word.lower() not in (*_ON, *OFF):
        raise ConfigError(f"{key}: expected one of {', '.join(_ON + OFF[1:])}; got {word!r}")
    return word.lower() in _ON


def named_project_file(typed: str | None, ini: str | None, ini_file: Path | None, here: Path) -> Path | None:
    """Return the lmgate.yaml given by option, if any; in an ini file it is relative to that file, else to `here`."""
    folders = ((typed, here), (ini, ini_file.parent if ini_file else here))
    return next((folder / Path(given).expanduser() for given, folder in folders if given), None)


def find_project_file(start: Path) -> Path | None:
    """Return the lmgate.yaml in `start` or the nearest folder above it, if any; it may not be a file."""
    files = (folder / FILE_NAME for folder in (start, *start.parents))
    return next((file for file in files if file.is_symlink() or file.exists()), None)


def misspelt(folder: Path) -> list[Path]:
    """Return files such as lmgate.yml and Lmgate.yaml, which are not read because of their names."""
    with contextlib.suppress(OSError):
        names = [name for name in os.listdir(folder) if name.casefold() in (FILE_NAME, "lmgate.yml")]  # noqa: PTH208
        return sorted(folder / name for name in names if name != FILE_NAME)
    return []


def read_project_file(file: Path, hint: str = "") -> str:
    """Return the text of an lmgate.yaml; the `hint` is added to the error if there is no file."""
    if (file.is_symlink() or file.exists()) and not file.is_file():
        kind = "a folder" if file.is_dir() else "a broken link" if file.is_symlink() else "a pipe or a device"
        raise ConfigError(f"{file}: expected a file, got {kind}; put the file there, or remove it")
    try:
        text = file.read_bytes().decode()  # with the ends of lines as they are
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}{hint}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file}: expected UTF-8 text, got byte {error.object[error.start]:#04x} at {error.start}"
        ) from error
    if line := conflict_line(text):
        raise ConfigError(f"{file}:{line}: an unresolved merge conflict; fix it, or restore the file")
    if not re.search(r"(?m)^[ \t\ufeff]*(?!(?:---|\.\.\.)\s*(?:#|$))[^\s#\ufeff]", text):
        raise ConfigError(
            f"{file}: expected models:, datasets: or gates:, got an empty file; write them, or remove the file"
        )
    return text


def conflict_line(text: str) -> int:
    """Return the first line (from 1) of a merge conflict; 0 without one."""
    mark = re.search(r"(?m)^(<{7}|={7}|>{7})", text)
    return text.count("\n", 0, mark.start()) + 1 if mark else 0
