"""What git says of a folder, where there is git and the folder is in a repository."""

from __future__ import annotations

__all__ = ["git_says", "run_git"]

import subprocess
from pathlib import Path
from typing import Any


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
