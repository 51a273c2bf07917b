"""Where a measurement was made: commit, hardware and versions; and what git says of a folder."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from pytest_lmgate.engines.devices import device_class, hardware_of
from pytest_lmgate.errors import ConfigError, escape_controls
from pytest_lmgate.identity import versions
from pytest_lmgate.judge.result import Run

_PACKAGES = ("pytest-lmgate", "torch", "transformers", "tokenizers", "sacrebleu")


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where and when a baseline was measured."""

    date: str  # day, UTC, ISO 8601
    commit: str  # with + where files were changed; empty outside a repository
    device: str  # as in cuda; empty for a function
    hardware: str
    versions: dict[str, str]
    label: str = ""  # the project's ``label:`` for the machine
    # largest difference between two runs of the unchanged model, by ``lmgate calibrate --write``; 0 if unknown
    varies_by: float = 0.0

    @property
    def place(self) -> str:
        """Where it was measured, in words."""
        return self.label or (self.hardware if self.device == "cuda" and self.hardware else self.device)


def provenance(folder: Path, device: str, hardware: str = "") -> Provenance:
    """Return the provenance of a measurement made now on `device` (empty for a function), on `hardware` if known."""
    driver = {"GPU driver": version} if (version := driver_of(device)) else {}
    return Provenance(
        date=datetime.now(timezone.utc).date().isoformat(),
        commit=_commit(folder),
        device=device_class(device),
        hardware=hardware or hardware_of(device),
        versions={"python": platform.python_version(), **versions(_PACKAGES), **driver},
    )


def changed_since(then: Provenance, now: Provenance) -> tuple[str, ...]:
    """Return differences that may change a number: hardware and versions."""
    pairs = [(device_class(then.device), now.device, "device")]
    if then.hardware and now.hardware:  # unknown of a measurement on a cluster
        pairs.append((then.hardware, now.hardware, "hardware"))
    names = [name for name in then.versions | now.versions if name != "python"]
    pairs += [(then.versions.get(name, "absent"), now.versions.get(name, "absent"), name) for name in names]
    return tuple(f"{what}: {old or 'none'} then, {new or 'none'} now" for old, new, what in pairs if old != new)


@functools.cache
def _commit(folder: Path) -> str:
    """Return the current commit, with ``+`` if tracked files are changed; empty outside a repository."""
    return git_says(folder, "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*")


def driver_of(device: str) -> str:
    """Return the version of a GPU's driver, as Linux tells it; empty for other devices."""
    if device_class(device) != "cuda":
        return ""
    for path in ("/proc/driver/nvidia/version", "/sys/module/amdgpu/version"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if found := re.search(r"\d+(\.\d+)+", Path(path).read_text(encoding="utf-8")):
                return found[0]
    return ""


# Systems of CI check out a commit rather than a branch; a pull request's own branch comes first.
_BRANCH_VARIABLES = (
    "GITHUB_HEAD_REF",
    "GITHUB_REF_NAME",
    "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME",
    "CI_COMMIT_REF_NAME",
    "BUILD_SOURCEBRANCHNAME",
    "BUILDKITE_BRANCH",
    "CIRCLE_BRANCH",
    "BRANCH_NAME",
)
_PROJECT_VARIABLES = ("GITHUB_REPOSITORY", "CI_PROJECT_PATH", "BUILD_REPOSITORY_NAME")


def branch(folder: Path) -> str:
    """Return the current branch, else the one that CI names, else nothing."""
    return git_says(folder, "symbolic-ref", "--short", "-q", "HEAD") or _first(_BRANCH_VARIABLES)


def project(folder: Path) -> str:
    """Return the project's name in CI, as in ``owner/name``, else the folder's."""
    return _first(_PROJECT_VARIABLES) or folder.resolve().name


def run_now(folder: Path, command: Iterable[object], **facts: Any) -> Run:
    """Return the record of a run of `command` that ends now in a folder; `facts` are its other fields."""
    return Run(
        project=project(folder),
        commit=_commit(folder),
        branch=branch(folder),
        date=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        command=_without_secrets(command),
        **facts,
    )


def _without_secrets(command: Iterable[object]) -> str:
    """Return a command without user, password and query of an address, and without the value of ``--token``."""
    words = [re.sub(r"(\w://[^\s?]*)\?\S*", r"\1?***", escape_controls(str(word), line=True)) for word in command]
    secret = r"(?i)(\0--?[\w-]*(?:token|key|secret|password)(?:=|\0(?!-)))[^\0]*"
    return shlex.join(re.sub(secret, r"\1***", "\0".join(words)).split("\0"))


def _first(variables: Iterable[str]) -> str:
    return next(filter(None, (os.environ.get(name) for name in variables)), "")


def git_says(folder: Path, *arguments: str) -> str:
    """Return the stripped output of a git command; empty if it fails or there is no git."""
    try:
        return git(folder, *arguments, timeout=30)
    except ConfigError:
        return ""


def git(folder: Path, *arguments: str, timeout: float | None = None) -> str:
    """Return the stripped output of a git command, or raise ConfigError with what git says."""
    how: dict[str, Any] = {"capture_output": True, "encoding": "utf-8", "errors": "replace", "timeout": timeout}
    try:
        return str(subprocess.run(["git", *arguments], cwd=folder, check=True, **how).stdout).strip()
    except subprocess.CalledProcessError as error:
        raise ConfigError(f"git {arguments[0]} failed: {' '.join(error.stderr.split())}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"git {arguments[0]} cannot be run: {error}") from None
