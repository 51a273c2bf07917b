"""Where a measurement was made: commit, hardware and versions, for the baseline file."""

from __future__ import annotations

__all__ = ["changed_since", "provenance"]

import functools
import platform
import sys
from datetime import datetime, timezone
from pathlib import Path

from pytest_lmgate.backends.hf.models.device import device_class
from pytest_lmgate.gates.baseline import Provenance
from pytest_lmgate.identity.libraries import versions
from pytest_lmgate.judge.repository import git_says

_PACKAGES = ("pytest-lmgate", "torch", "transformers", "tokenizers", "sacrebleu")


def provenance(folder: Path, device: str) -> Provenance:
    """Return the provenance of a measurement made now on `device` (empty for a function), in a repository."""
    return Provenance(
        date=datetime.now(timezone.utc).date().isoformat(),
        commit=_commit(folder),
        device=device_class(device),
        hardware=_hardware(device),
        versions={"python": platform.python_version(), **versions(_PACKAGES)},
    )


def changed_since(then: Provenance, now: Provenance) -> tuple[str, ...]:
    """Return in words what may move a number: other hardware or versions."""
    pairs = [(device_class(then.device), now.device, "device")]
    if then.hardware and now.hardware:  # a measurement from the cache does not know the accelerator's name
        pairs.append((then.hardware, now.hardware, "hardware"))
    names = [name for name in then.versions | now.versions if name != "python"]
    pairs += [(then.versions.get(name, "absent"), now.versions.get(name, "absent"), name) for name in names]
    return tuple(f"{what}: {old or 'none'} then, {new or 'none'} now" for old, new, what in pairs if old != new)


@functools.cache
def _commit(folder: Path) -> str:
    """Return the commit checked out, with ``+`` where tracked files were changed; empty outside a repository."""
    return git_says(folder, "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*")


def _hardware(device: str) -> str:
    torch = sys.modules.get("torch")  # a measurement from the cache asks no driver
    if device.startswith("cuda") and torch is not None and torch.cuda.is_available():
        return str(torch.cuda.get_device_name(device))
    return _processor() if device in ("cpu", "") else ""


@functools.cache
def _processor() -> str:
    """Return the processor's model, where the system says it; else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
