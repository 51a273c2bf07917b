"""Code that runs with a model and is not in its files: libraries, patches of them, and what a checkpoint imports.

A session that patches a library keeps nothing that it measures. `find_patched_libraries` is a short check that the
functions and classes which run a model are their libraries' own. docs/cache.md says what it does not see.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import os
import re
import site
import sys
import sysconfig
import types
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

# An address holds the version of these libraries, so their own code and objects are known by name.
LIBRARIES = frozenset({"accelerate", "bitsandbytes", "numpy", "peft", "tokenizers", "torch", "torchao", "transformers"})
# The kernels of quantized models come from one of these.
QUANTIZERS = ("accelerate", "bitsandbytes", "torchao", "gptqmodel", "autoawq", "compressed-tensors", "optimum", "hqq")
# The libraries use functions of these packages, which compute nothing.
_BENEATH = frozenset({"huggingface_hub", "safetensors", "tqdm", "typing_extensions"})
_PACKAGES = LIBRARIES | _BENEATH | sys.stdlib_module_names
STANDARD_LIBRARY = "the standard library"


def is_library(module: object) -> bool:
    return str(module).partition(".")[0] in _PACKAGES


@functools.cache
def home_of_file(file: str) -> str | None:
    """Return the installed package of a source file (``code.co_filename``); None for a user's file."""
    if file.startswith("<frozen "):
        return STANDARD_LIBRARY
    for folder in _site_folders():
        if file.startswith(folder):
            return file[len(folder) :].partition(os.sep)[0].removesuffix(".py")
    standard = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib"))
    return STANDARD_LIBRARY if file.startswith(standard) else None


@functools.cache
def version_of(package: str) -> str:
    """Return a package's installed version, or ``absent``."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the installed versions of packages, or ``absent``, without importing them."""
    return {package: version_of(package) for package in packages}


@functools.cache
def installed_packages() -> str:
    """Return names and versions of all installed packages, for code that imports one of them."""
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


_RUNNING = re.compile(
    r"transformers\.(models\..+\.(modeling|tokenization)_\w+|models\.auto\.\w+_auto|(modeling|tokenization)_\w+|activations"
    r"|cache_utils|generation\.(utils|logits_process)|integrations\.\w+|masking_utils|pytorch_utils)$"
    r"|peft\.(peft_model|tuners\.(tuners_utils|lora\.\w+))$|tokenizers$|torch\.nn\.(functional|modules\.\w+)$|torch(\.functional|\._tensor)?$"
)
# transformers puts the code that comes with a checkpoint here; it is hashed with the checkpoint's files.
_CHECKPOINTS = "transformers_modules."


def find_patched_libraries() -> tuple[str, ...]:
    """Return the patches of libraries in this session, each in words; nothing is imported to look."""
    if not hasattr(sys.modules.get("torch"), "_C"):
        return ()
    for name in ("peft", "tokenizers", "torch", "transformers"):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and home_of_file(file) != name:  # its version does not tell of its code
            return (f"{name}, by importing it from {file}, which is not an installed package",)
    found = {
        f"{path} is {value.__module__}.{getattr(value, '__qualname__', type(value).__name__)}": None
        for name, module in sorted(sys.modules.items())
        if _RUNNING.match(name) and isinstance(module, types.ModuleType)
        for path, value in _code_in(name, module, module)
        if not _is_librarys(value, module) and not str(value.__module__).startswith(_CHECKPOINTS)
    }
    return tuple(found)


def summarize(reasons: Sequence[str]) -> str:
    """Name the first two of several reasons."""
    more = f" and {len(reasons) - 2} more" if len(reasons) > 2 else ""
    return ", ".join(reasons[:2]) + more


def _code_in(path: str, value: Any, module: types.ModuleType, depth: int = 4) -> Iterator[tuple[str, Any]]:
    """Yield functions and classes of a module, of its classes, and of its tables, such as that of attentions."""
    value = getattr(value, "__func__", value.fget if isinstance(value, property) else value)
    value = value.func if isinstance(value, functools.partialmethod) else value
    if isinstance(value, types.FunctionType | type) or type(value).__module__ == "unittest.mock":
        yield path, value
    if value is module or (isinstance(value, type) and value.__module__ == module.__name__):
        held: Any = vars(value)
    elif isinstance(value, tuple):
        held = dict(enumerate(value))
    elif type(value) in (dict, OrderedDict):  # hooks on all modules are in the latter
        held = value
    else:  # a lazy table, whose items() would import what they name, keeps what was added to it in a plain one
        added = {} if isinstance(value, type | types.ModuleType) else getattr(value, "__dict__", {})
        held = {key: added[key] for key in ("_extra_content", "_local_mapping") if key in added}
    for key, member in list(held.items()) if depth else ():
        if key != "__builtins__":
            yield from _code_in(f"{path}.{key}", member, module, depth - 1)


def _is_librarys(value: Any, module: types.ModuleType) -> bool:
    """Whether a function or class in `module` is a library's, or of a package that the module's source names."""
    if type(value).__module__ == "unittest.mock":
        return False
    if isinstance(value, type):
        files = [getattr(sys.modules.get(value.__module__), "__file__", None) or value.__module__]
    else:  # a decorator hides the function that it calls
        functions = (value, inspect.unwrap(value))
        files = [each.__code__.co_filename for each in functions if isinstance(each, types.FunctionType)]
    homes = [home_of_file(file) for file in files if file[0] != "<" and os.sep in file]  # some are written at run time
    return all(home == STANDARD_LIBRARY or is_library(home) or (home and _names(module, home)) for home in homes)


@functools.cache
def _names(module: types.ModuleType, package: str) -> bool:
    try:
        return package in Path(str(module.__file__)).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


# These import or run code under a name that only a run tells.
_COMPUTED = frozenset(
    {"__import__", "exec", "exec_module", "import_module", "load_module", "run_module", "run_path",
     "spec_from_file_location"}
)  # fmt: skip


class Imports(NamedTuple):
    """What Python files import."""

    packages: bool  # whether they import an installed package other than the libraries
    unknown: str  # why the files do not identify the code that runs; empty if they do


def imports_of(files: Iterable[Path]) -> Imports:
    """Return what Python files import, without running them; a package that is not installed cannot run."""
    packages = False
    for file in files:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # escapes in texts, which are errors in a session under -W error
                nodes = [*ast.walk(ast.parse(file.read_bytes()))]
        except (OSError, SyntaxError, ValueError, RecursionError) as error:
            return Imports(packages, f"{file.name} cannot be read as Python: {error}")
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
        for called in (getattr(node, "id", getattr(node, "attr", None)) for node in nodes):
            if called in _COMPUTED:
                return Imports(packages, f"{file.name} imports by {called}, with a name that is computed at run time")
        for name in {name.partition(".")[0] for name in names}:
            if is_library(name):
                continue
            if not (places := _places(name)):
                continue
            if not all(map(home_of_file, places)):
                return Imports(packages, f"{file.name} imports {name}, which is not an installed package")
            packages = True
    return Imports(packages, "")


def _places(name: str) -> list[str]:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a module that the session made, without a file
        return ["nowhere"]
    if spec is None:
        return []
    return [spec.origin] if spec.has_location and spec.origin else [*(spec.submodule_search_locations or ["nowhere"])]
