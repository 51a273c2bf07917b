"""What a model is, by content: the files that a loader may open, and code that runs with it and is not in its files.

Such code is libraries, and what replaces their classes and ``forward``s: liger-kernel, unsloth and ipex do so when they
are imported or told to. Nothing is kept of a model that runs other code than the libraries whose versions are in its
address. docs/cache.md says what is not seen.
"""

from __future__ import annotations

import functools
import json
import linecache
import os
import re
import site
import sys
import sysconfig
import time
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

# No loader reads these files of a checkpoint's folder; every other file is taken to matter.
_IRRELEVANT_SUFFIXES = {".md", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".pdf", ".log", ".csv", ".lock"}
_IRRELEVANT_NAMES = {
    ".gitattributes", ".gitignore", ".DS_Store", "LICENSE", "LICENSE.txt", "NOTICE", "USE_POLICY", "all_results.json",
    "eval_results.json", "lmgate-baseline.json", "lmgate.yaml", "optimizer.pt", "pytest.ini", "scheduler.pt",
    "scaler.pt", "rng_state.pth", "train_results.json", "trainer_state.json", "training_args.bin",
}  # fmt: skip
_NO_CONFIG = {"added_tokens.json", "tokenizer.json", "vocab.json"}  # large, and they name no files
_LONGEST_PATH = 1024
_RACY_SECONDS = 2.0


def checkpoint_files(folder: Path, *, everything: bool = False) -> dict[str, Path]:
    """Return every file of a folder that a loader may open, by its name within the folder, sorted.

    These are the files of the folder itself, Python code and chat templates below it, and files in inner folders that a
    JSON file names, such as the shards of an index or ``transformers_weights`` of config.json; or `everything` below
    it, for a checkpoint whose own code may open any file.
    """
    found: set[str] = set()
    for parent, names in _walk(folder):
        inner = os.path.relpath(parent, folder)
        templates = inner == "additional_chat_templates"
        for name in names:
            if everything or templates or name.endswith(".py") or (inner == os.curdir and _matters(name)):
                found.add((Path(inner) / name).as_posix())
    waiting = [name for name in found if _is_config(name)]
    while waiting:
        name = waiting.pop()
        new = {named for named in _named_in(folder, name) if named not in found}
        found |= new
        waiting += filter(_is_config, new)
    return {name: folder / name for name in sorted(found) if is_file(folder / name)}


def folders_below(folder: Path) -> list[Path]:
    """Return a folder and the folders below it: adding a file to one changes its status."""
    return [Path(parent) for parent, _ in _walk(folder)]


def texts_in(content: Any) -> Iterator[str]:
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and 0 < len(value) <= _LONGEST_PATH and "\0" not in value:
            yield value


def is_file(path: Path) -> bool:
    """Whether a path is a file; False for a text that cannot be a path."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


@dataclass(frozen=True)
class Snapshot:
    """Files and folders with their status: device, inode, size, and times of modification and change."""

    states: dict[str, tuple[int, ...] | None]  # None for a path that does not exist
    taken: float  # seconds since the epoch

    @classmethod
    def of(cls, paths: Iterable[Path]) -> Snapshot:
        return cls({str(path): _state(str(path)) for path in paths}, time.time())

    @property
    def moved(self) -> list[str]:
        return [path for path, state in self.states.items() if _state(path) != state]

    @property
    def is_settled(self) -> bool:
        """Whether everything is old enough that a further change would change a time too."""
        newest = max((max(state[3:]) for state in self.states.values() if state is not None), default=0)
        return self.taken - newest / 1e9 > _RACY_SECONDS


def _walk(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the folders below a folder with their files' names, without hidden folders and bytecode."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith(".") and each != "__pycache__")
        yield parent, names


def _state(path: str) -> tuple[int, ...] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _matters(name: str) -> bool:
    return name not in _IRRELEVANT_NAMES and Path(name).suffix.lower() not in _IRRELEVANT_SUFFIXES


def _is_config(name: str) -> bool:
    return name.endswith(".json") and Path(name).name not in _NO_CONFIG


def _named_in(folder: Path, name: str) -> Iterator[str]:
    """Yield the files in inner folders that a JSON file names, relative to the folder or to the JSON file."""
    try:
        content = json.loads((folder / name).read_bytes())
    except (OSError, ValueError, RecursionError):
        return  # the loader will say what is wrong with it
    for text in set(texts_in(content)):
        for base in {Path(), Path(name).parent}:
            path = os.path.normpath(base / text)
            if is_file(folder / path):
                yield Path(path).as_posix()


# An address holds the version of these libraries, so their own code and objects are known by name.
LIBRARIES = frozenset({"accelerate", "bitsandbytes", "numpy", "peft", "tokenizers", "torch", "torchao", "transformers"})
# The kernels of quantized models come from one of these.
QUANTIZERS = ("accelerate", "bitsandbytes", "torchao", "gptqmodel", "autoawq", "compressed-tensors", "optimum", "hqq")
_QUANTIZING = frozenset({"awq", *(name.replace("-", "_") for name in QUANTIZERS)})  # as they are imported
# The libraries use functions of these packages, which compute nothing; Python's own modules in C are in lib-dynload.
_BENEATH = frozenset({"huggingface_hub", "lib-dynload", "packaging", "safetensors", "tqdm", "typing_extensions"})
_PACKAGES = LIBRARIES | _BENEATH | sys.stdlib_module_names


@functools.cache
def is_library(module: str | None) -> bool:
    return str(module).partition(".")[0] in _PACKAGES


@functools.cache
def home_of_file(file: str) -> str | None:
    """Return the installed package or Python's own module of a source file; None for a user's file."""
    found = (file[len(folder) :] for folder in _folders() if file.startswith(folder))
    return next((path.partition(os.sep)[0].removesuffix(".py") for path in found), None)


@functools.cache
def _folders() -> tuple[str, ...]:
    folders = {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    # Packages may be installed elsewhere, as by `pip install --target`.
    folders |= {path for path in sys.path if path.endswith("-packages") or any(Path(path).glob("*.dist-info"))}
    return tuple(sorted((f"{each}{os.sep}" for each in folders), key=len, reverse=True))


@functools.cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the installed versions of packages, or ``absent``, without importing them."""
    return {package: _version(package) for package in packages}


def summarize(reasons: Sequence[str]) -> str:
    """Name the first two of several reasons."""
    more = f" and {len(reasons) - 2} more" if len(reasons) > 2 else ""
    return ", ".join(reasons[:2]) + more


# Where transformers and torch define the modules of models and the functions that these call.
_MODULES = re.compile(r"transformers\.models\.\w+\.modeling_\w+$|torch\.nn\.(functional$|modules\.)")
_BEGINNINGS = ("transformers.models.", "torch.nn.")


def replaced_in_libraries() -> tuple[str, ...]:
    """Return what replaces a class, a function or a ``forward`` of a library's models in this session, in words.

    Only what is imported is looked at, so that a session finds what was measured without a patch, or keeps nothing.
    """
    if sys.modules.get("torch") is None:
        return ()
    modules = [
        (name, module)
        for name, module in list(sys.modules.items())  # thousands
        if name.startswith(_BEGINNINGS) and _MODULES.match(name)
    ]
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in ("torch", "transformers", "peft")}
    # Of a library that is a source tree, the version does not tell the code.
    trees = [f"{name}, imported from {file}" for name, file in files.items() if file and home_of_file(file) != name]
    return (*trees, *(words for name, module in sorted(modules) for words in _replaced(name, module)))


def replaced_in_model(model: Any) -> tuple[str, ...]:
    """Return the modules of a loaded model whose class or ``forward`` is not a library's, in words."""
    found: dict[str, None] = {}
    for name, module in model.named_modules():
        kind = type(module)
        for words, code in ((kind.__name__, kind), (f"{kind.__name__}.forward", getattr(module, "forward", None))):
            if not _is_librarys(code):
                found[f"{words} ({name or 'the model'}) is {_named(code)}"] = None
    return tuple(found)


def _replaced(name: str, module: types.ModuleType) -> Iterator[str]:
    kinds = (type, types.FunctionType)
    for key, value in list(vars(module).items()):
        if not isinstance(value, kinds):
            continue
        if not _is_librarys(value, module):
            yield f"{name}.{key} is {_named(value)}"
            continue
        forward = vars(value).get("forward") if isinstance(value, type) and value.__module__ == name else None
        if forward is not None and not _is_librarys(forward, module):
            yield f"{name}.{key}.forward is {_named(forward)}"


def _is_librarys(code: Any, module: types.ModuleType | None = None) -> bool:
    """Whether a class or function, with all that its decorators hide, is of a library whose version is known.

    In a `module` of a library it may also be of an installed package that the module's source names.
    """
    while isinstance(code, (functools.partial, types.MethodType)):
        code = code.func if isinstance(code, functools.partial) else code.__func__
    if isinstance(code, type):
        file = getattr(sys.modules.get(code.__module__), "__file__", None)
        return code.__module__ != "unittest.mock" and (
            is_library(code.__module__) if file is None else _is_home(file, module)
        )
    if not isinstance(code, types.FunctionType):  # torch's own in C
        return is_library(type(code).__module__) and type(code).__module__ != "unittest.mock"
    return _is_home(code.__code__.co_filename, module) and (
        not hasattr(code, "__wrapped__") or _is_librarys(code.__wrapped__, module)
    )


@functools.cache
def _is_home(file: str, module: types.ModuleType | None) -> bool:
    if file[0] == "<" or os.sep not in file:  # some code is written at run time
        return True
    home = home_of_file(file)
    if home is None or is_library(home) or home in _QUANTIZING:
        return home is not None
    return module is not None and any(home in line for line in linecache.getlines(str(module.__file__)))


def _named(code: Any) -> str:
    return f"{getattr(code, '__module__', '')}.{getattr(code, '__qualname__', type(code).__name__)}"
