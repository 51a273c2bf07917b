"""Which installed libraries run a model, where their code lies, and their versions. Imports none of them."""

from __future__ import annotations

__all__ = [
    "LIBRARIES",
    "QUANTIZERS",
    "STANDARD_LIBRARY",
    "home_of_file",
    "installed_packages",
    "is_library",
    "version_of",
    "versions",
]

import functools
import os
import site
import sys
import sysconfig
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# An address holds the version of these libraries, so their own code and objects are known by name.
LIBRARIES = frozenset({"accelerate", "bitsandbytes", "numpy", "peft", "tokenizers", "torch", "torchao", "transformers"})
# The kernels of quantized models come from one of these.
QUANTIZERS = ("accelerate", "bitsandbytes", "torchao", "gptqmodel", "autoawq", "compressed-tensors", "optimum", "hqq")
# The libraries use functions of these packages, which compute nothing.
_BENEATH = frozenset({"huggingface_hub", "safetensors", "tqdm", "typing_extensions"})
_PACKAGES = LIBRARIES | _BENEATH | sys.stdlib_module_names
STANDARD_LIBRARY = "the standard library"


def is_library(module: object) -> bool:
    """Return whether a module, given by name, is Python's or belongs to one of the libraries."""
    return str(module).partition(".")[0] in _PACKAGES


@functools.cache
def home_of_file(file: str) -> str | None:
    """Return the installed package that a source file (``code.co_filename``) belongs to; None for a user's file."""
    if file.startswith("<frozen "):
        return STANDARD_LIBRARY
    for folder in _site_folders():
        if file.startswith(folder):
            return file[len(folder) :].partition(os.sep)[0].removesuffix(".py")
    return STANDARD_LIBRARY if file.startswith(_standard_folders()) else None


@functools.cache
def version_of(package: str) -> str:
    """Return a package's installed version, or ``absent``. It is looked up once: it cannot change within a session."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the installed versions of packages without importing them; ``absent`` for a package that is not there."""
    return {package: version_of(package) for package in packages}


@functools.cache
def installed_packages() -> str:
    """Return the names and versions of all installed packages, for code that imports one that is no library above."""
    # A package that setup.py or a distribution of Linux installed has egg-info.
    found = (Path(folder).glob(f"*.{kind}-info") for folder in _site_folders() for kind in ("dist", "egg"))
    return " ".join(sorted({path.name for paths in found for path in paths}))


@functools.cache
def _site_folders() -> tuple[str, ...]:
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    folders.add(site.getusersitepackages())
    # Packages may be installed elsewhere, as by `pip install --target`.
    folders |= {path for path in sys.path if path.endswith("-packages") or any(Path(path).glob("*.dist-info"))}
    return tuple(sorted((f"{each}{os.sep}" for each in folders), key=len, reverse=True))


@functools.cache
def _standard_folders() -> tuple[str, ...]:
    return tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib"))
