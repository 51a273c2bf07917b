"""Where commands look: the options that they share, and what a session of pytest would use in their place."""

from __future__ import annotations

__all__ = ["BaselineOption", "CacheOption", "ConfigOption", "DeviceOption", "OfflineOption", "root"]

from pathlib import Path
from typing import Annotated

import typer

from pytest_lmgate.config.rootdir import Root, find_root

CacheOption = Annotated[
    str | None, typer.Option("--cache", metavar="FOLDER", help="Folder of measurements (default: that of pytest).")
]
BaselineOption = Annotated[
    str | None, typer.Option("--baseline", metavar="FILE", help="Baseline file (default: beside lmgate.yaml).")
]
ConfigOption = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="lmgate.yaml to use (default: the nearest upward)."),
]
DeviceOption = Annotated[str | None, typer.Option("--device", help="auto, cuda, mps, cpu.")]
OfflineOption = Annotated[bool, typer.Option("--offline", help="Never use the network.")]


def root() -> Root:
    """Return the rootdir of a session that pytest would begin here."""
    return find_root(Path.cwd())
