"""What git says of a folder, where there is git and the folder is in a repository."""

from __future__ import annotations

__all__ = ["git_says"]

import subprocess
from pathlib import Path


def git_says(folder: Path, *arguments: str) -> str:
    """Return what a command of git prints, without white space around it; empty where it fails or there is no git."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
