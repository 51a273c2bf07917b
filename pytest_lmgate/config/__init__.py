"""What the user asked: lmgate.yaml and markers' arguments, decoded into frozen, validated specs; nothing is loaded.

Where lmgate.yaml is found stands here, so that a session without gates knows it without importing YAML.
"""

from __future__ import annotations

__all__ = [
    "BASELINE_NAME",
    "CACHE_NAME",
    "FILE_NAME",
    "OFF",
    "conflict_line",
    "find_project_file",
    "is_on",
    "misspelt",
    "read_project_file",
]

import contextlib
import re
from pathlib import Path

from pytest_lmgate.errors import ConfigError

FILE_NAME = "lmgate.yaml"
CACHE_NAME = ".lmgate_cache"  # folder of measurements, in rootdir
BASELINE_NAME = "lmgate-baseline.json"  # baseline of no_regression gates, beside lmgate.yaml
# How ini files and environment variables turn an option on and off, in small letters.
_ON = ("1", "true", "yes", "on")
OFF = ("", "0", "false", "no", "off")


def find_project_file(start: Path) -> Path | None:
    """Return the lmgate.yaml in `start` or in the nearest folder above it, if there is one; it may be no file."""
    files = (folder / FILE_NAME for folder in (start, *start.parents))
    return next((file for file in files if file.is_symlink() or file.exists()), None)


def misspelt(folder: Path) -> list[Path]:
    """Return the files of a folder that are not read because of their names, such as lmgate.yml and Lmgate.yaml."""
    with contextlib.suppress(OSError):
        found = [file for file in folder.iterdir() if file.name.casefold() in (FILE_NAME, "lmgate.yml")]
        return sorted(file for file in found if file.name != FILE_NAME)
    return []


def read_project_file(file: Path, hint: str = "") -> str:
    """Return the text of an lmgate.yaml.

    Args:
        file: The file.
        hint: What to say where there is none to read.

    Raises:
        ConfigError: It is no file, is not UTF-8, has nothing in it, or a merge conflict.
    """
    if (file.is_symlink() or file.exists()) and not file.is_file():
        kind = "a folder" if file.is_dir() else "a link to nothing" if file.is_symlink() else "a pipe or a device"
        raise ConfigError(f"{file}: expected a file, got {kind}; put the file there, or remove it")
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}{hint}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file}: expected UTF-8 text, got byte {error.object[error.start]:#04x} at {error.start}"
        ) from error
    if line := conflict_line(text):
        raise ConfigError(f"{file}:{line}: an unresolved merge conflict; mend it, or restore the file")
    if not re.search(r"(?m)^[ \t\ufeff]*(?!(?:---|\.\.\.)\s*(?:#|$))[^\s#\ufeff]", text):
        raise ConfigError(f"{file}: expected models:, datasets: or gates:, got an empty file; write them, or remove it")
    return text


def conflict_line(text: str) -> int:
    """Return the first line, from 1, with a mark of a merge conflict; 0 where there is none."""
    mark = re.search(r"(?m)^(<{7}|={7}|>{7})", text)
    return text.count("\n", 0, mark.start()) + 1 if mark else 0


def is_on(name: str, *given: object) -> bool:
    """Return whether an option such as ``lmgate_offline`` is on.

    Args:
        name: The option's name in ini files.
        given: What the ini file and the environment say, None where they say nothing; the first that says something
            decides.

    Raises:
        ConfigError: It says neither on nor off.
    """
    word = next((str(each) for each in given if each is not None), "")
    if word.lower() not in (*_ON, *OFF):
        raise ConfigError(f"{name}: expected one of {', '.join(_ON + OFF[1:])}; got {word!r}")
    return word.lower() in _ON
