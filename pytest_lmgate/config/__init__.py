"""What the user asked: lmgate.yaml and markers' arguments, decoded into frozen, validated specs; nothing is loaded.

Where lmgate.yaml is found stands here, so that a session without gates knows it without importing YAML.
"""

from __future__ import annotations

__all__ = ["BASELINE_NAME", "CACHE_NAME", "FILE_NAME", "OFF", "WRONG_NAME", "find_project_file", "is_on"]

from pathlib import Path

from pytest_lmgate.errors import ConfigError

FILE_NAME = "lmgate.yaml"
WRONG_NAME = "lmgate.yml"  # which nobody reads, and of which somebody should say so
CACHE_NAME = ".lmgate_cache"  # folder of measurements, in rootdir
BASELINE_NAME = "lmgate-baseline.json"  # baseline of no_regression gates, beside lmgate.yaml
# How ini files and environment variables turn an option on and off, in small letters.
_ON = ("1", "true", "yes", "on")
OFF = ("", "0", "false", "no", "off")


def find_project_file(start: Path) -> Path | None:
    """Return the lmgate.yaml in `start` or in the nearest folder above it, if there is one."""
    return next((file for folder in (start, *start.parents) if (file := folder / FILE_NAME).is_file()), None)


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
