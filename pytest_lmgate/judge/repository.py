"""What git says of a folder, where there is git and the folder is in a repository."""

from __future__ import annotations

__all__ = ["branch", "git_says", "project", "run_git"]

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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
    """Return the branch that is checked out, else the one that CI names, else nothing."""
    return git_says(folder, "symbolic-ref", "--short", "-q", "HEAD") or _first(_BRANCH_VARIABLES)


def project(folder: Path) -> str:
    """Return the name that CI has for the project, as in ``owner/name``, else the folder's."""
    return _first(_PROJECT_VARIABLES) or folder.resolve().name


def _first(variables: Iterable[str]) -> str:
    return next(filter(None, (os.environ.get(name) for name in variables)), "")


def git_says(folder: Path, *arguments: str) -> str:
    """Return what a command of git prints, without white space around it; empty where it fails or there is no git."""
    try:
        return run_git(folder, *arguments, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def run_git(folder: Path, *arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a command of git; `how` goes to ``subprocess.run``, whose exceptions come back."""
    how = {"capture_output": True, "encoding": "utf-8", "errors": "replace", "check": False, **how}
    return subprocess.run(["git", *arguments], cwd=folder, **how)
