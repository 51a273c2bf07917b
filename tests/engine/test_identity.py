"""Digests of objects: another content is another digest, the same content the same one, in any process."""

from __future__ import annotations

import argparse
import array
import collections
import dataclasses
import decimal
import enum
import functools
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from pytest_lmgate.engine.identity import digest
from tests.models.zoo import word_tokenizer


def _scaling(factor: float) -> Callable[[Any], Any]:
    space: dict[str, Any] = {}
    exec(f"def scale(x):\n    return x * {factor}", space)
    return space["scale"]  # type: ignore[no-any-return]


def _class(factor: float) -> type:
    space: dict[str, Any] = {}
    exec(f"class Own:\n    factor = {factor}", space)  # which says that it is of builtins
    return space["Own"]  # type: ignore[no-any-return]


def _cached(factor: float) -> Any:
    return functools.lru_cache(_scaling(factor))


def _guarded(factor: float) -> Callable[[Any], Any]:
    def guarded(x: Any) -> Any:
        try:
            return x * factor if factor > 1 else x[0]
        except TypeError:
            return x

    return guarded


def _tagged(factor: float) -> Callable[[Any], Any]:
    def tagged(x: Any) -> Any:
        return x * tagged.factor  # type: ignore[attr-defined]

    tagged.factor = factor  # type: ignore[attr-defined]
    return tagged


@dataclasses.dataclass
class Settings:
    factor: float
    names: list[str] = dataclasses.field(default_factory=list)


class Slotted:
    __slots__ = ("_factor", "absent")

    def __init__(self, factor: float) -> None:
        self._factor = factor


class Secretive(Settings):
    def __getstate__(self) -> dict[str, Any]:
        return {}


class Mode(enum.Enum):
    A = 1
    B = 2


class Named(str):
    """A text with more to it."""

    def __new__(cls, text: str, factor: float) -> Named:
        made = super().__new__(cls, text)
        made.factor = factor  # type: ignore[attr-defined]
        return made


class Listed(list[Any]):
    factor = 0.0


def _listed(factor: float) -> Listed:
    made = Listed([1])
    made.factor = factor
    return made


def _tensor_with(factor: float) -> torch.Tensor:
    made = torch.zeros(2)
    made.factor = factor  # type: ignore[attr-defined]
    return made


def _tokenizer(**held: Any) -> Any:
    made = word_tokenizer()
    vars(made).update(held)
    return made


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held


# What makes two objects that differ in their content, given two numbers.
KINDS: dict[str, Callable[[int], Any]] = {
    "range": range,
    "slice": slice,
    "SimpleNamespace": lambda n: types.SimpleNamespace(scale=n),
    "argparse.Namespace": lambda n: argparse.Namespace(scale=n),
    "re.Pattern": lambda n: re.compile(f"a{{{n}}}"),
    "flags of a pattern": lambda n: re.compile("a", re.DOTALL if n > 1 else re.ASCII),
    "np.float32": np.float32,
    "np.int64": np.int64,
    "np.bool": lambda n: np.bool_(n > 1),
    "np.dtype": lambda n: np.dtype(f"f{4 * n}"),
    "array of texts": lambda n: np.array(["a", f"b{n}"]),
    "array of objects": lambda n: np.array([{"a": n}, None], dtype=object),
    "masked array": lambda n: np.ma.array([1, 2], mask=[False, n > 1]),
    "Decimal": decimal.Decimal,
    "deque": lambda n: collections.deque([1, n]),
    "length of a deque": lambda n: collections.deque([1], maxlen=n),
    "OrderedDict": lambda n: collections.OrderedDict(a=n),
    "defaultdict": lambda n: collections.defaultdict(list, a=n),
    "mappingproxy": lambda n: types.MappingProxyType({"a": n}),
    "bytearray": lambda n: bytearray([n]),
    "array.array": lambda n: array.array("b", [n]),
    "iterator": lambda n: iter([1, n]),
    "function of its own": _scaling,
    "class of its own": _class,
    "lru_cache": _cached,
    "lru_cache that passes for another": lambda n: functools.wraps(len)(_cached(n)),
    "partial": lambda n: functools.partial(_scaling, n),
    "partialmethod": lambda n: functools.partialmethod(_scaling, n),
    "cached_property": lambda n: functools.cached_property(_scaling(n)),
    "staticmethod": lambda n: staticmethod(_scaling(n)),
    "setter of a property": lambda n: property(len, _scaling(n)),
    "singledispatch": lambda n: functools.singledispatch(_scaling(n)),
    "np.vectorize": lambda n: np.vectorize(_scaling(n)),
    "bound method of a dict": lambda n: {"a": n}.get,
    "bound method of a pattern": lambda n: re.compile(f"a{n}").sub,
    "attribute of a function": _tagged,
    "closure": _guarded,
    "dataclass": Settings,
    "what is not pickled": Secretive,
    "slots": Slotted,
    "enum": lambda n: Mode(n),
    "derived from str": lambda n: Named("a", n),
    "derived from list": _listed,
    "attribute of a tensor": _tensor_with,
    "config": lambda n: transformers.LlamaConfig(hidden_size=32 * n),
    "fast tokenizer": lambda n: _tokenizer(keep=n),
    "method replaced on a tokenizer": lambda n: _tokenizer(_encode_plus=_scaling(n)),
    "spaces of a tokenizer": lambda n: _tokenizer(clean_up_tokenization_spaces=n > 1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_another_content_is_another_digest(kind: str) -> None:
    made = KINDS[kind]

    assert digest(made(2)) == digest(made(2))
    assert digest(made(2)) != digest(made(1))
    assert digest(Holder([made(2)])) == digest(Holder([made(2)])) != digest(Holder([made(1)]))


KNOWN_BY_NAME = [
    len,
    str.upper,
    torch.relu,
    torch.nn.functional.gelu,
    np.add,
    print,
    dict,
    torch.float32,
    ...,
    re,
    os.path,
]


@pytest.mark.parametrize("value", KNOWN_BY_NAME, ids=lambda value: getattr(value, "__name__", str(value)))
def test_what_a_library_has_under_a_name_is_known_by_it(value: object) -> None:
    assert digest(value) == digest(value)
    assert len({digest(each) for each in KNOWN_BY_NAME}) == len(KNOWN_BY_NAME)


def test_where_a_config_was_loaded_from_is_no_part_of_it() -> None:
    configs = [transformers.LlamaConfig(name_or_path=where) for where in ("a", "b")]

    assert configs[0]._name_or_path != configs[1]._name_or_path
    assert digest(configs[0]) == digest(configs[1])


def test_what_a_cached_function_remembers_is_no_part_of_it() -> None:
    cached = _cached(2)
    before = digest(cached)
    cached(3)

    assert digest(cached) == before


def test_a_variable_that_is_not_set_yet_is_nothing() -> None:
    def made(later: bool) -> Callable[[], Any]:
        def inner() -> Any:
            return value

        if later:
            value = torch.zeros(2)
        return inner

    assert digest(made(False)) == digest(made(False)) != digest(made(True))


def test_a_collection_that_holds_itself_ends() -> None:
    space = types.SimpleNamespace()
    space.own, space.table = space, {"a": [space]}

    assert digest(space) == digest(space)


_IN_A_PROCESS = """
from pytest_lmgate.engine.identity import digest
from tests.engine.test_identity import KINDS, KNOWN_BY_NAME
for kind, made in KINDS.items():
    print(kind, digest(made(2)))
print([digest(each) for each in KNOWN_BY_NAME])
"""


def test_digests_are_the_same_in_every_process() -> None:
    root = Path(__file__).parents[2]
    said = [
        subprocess.run(
            [sys.executable, "-c", _IN_A_PROCESS],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for seed in ("1", "2")
    ]

    assert len(said[0]) == len(KINDS) + 1
    assert said[0] == said[1]


# Modules of one's own.


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Folder of packages that can be imported, and are forgotten after the test."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    (tmp_path / "ourlib").mkdir()
    (tmp_path / "ourlib" / "__init__.py").write_text("from . import ops\n")
    (tmp_path / "ourlib" / "ops.py").write_text("def scale(x):\n    return x * 1.0\n")
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("ourlib", "user", "helper"):
            del sys.modules[name]


WAYS = {
    "a module's attribute": "import ourlib\n\ndef use(x):\n    return ourlib.ops.scale(x)\n",
    "a module of a package": "from ourlib import ops\n\ndef use(x):\n    return ops.scale(x)\n",
    "a function": "from ourlib.ops import scale\n\ndef use(x):\n    return scale(x)\n",
    "imported within": "def use(x):\n    from ourlib.ops import scale\n    return scale(x)\n",
    "imported within, the module": "def use(x):\n    import ourlib.ops\n    return ourlib.ops.scale(x)\n",
    "by another module": "import helper\n\ndef use(x):\n    return helper.use(x)\n",
}


@pytest.mark.parametrize("way", WAYS)
def test_another_file_of_a_module_that_code_reaches_is_another_digest(package: Path, way: str) -> None:
    (package / "helper.py").write_text("from ourlib.ops import scale\n\ndef use(x):\n    return scale(x)\n")
    (package / "user.py").write_text(WAYS[way])
    found = []
    for factor in ("1.0", "1.0", "2.5"):
        (package / "ourlib" / "ops.py").write_text(f"def scale(x):\n    return x * {factor}\n")
        for name in [name for name in sys.modules if name.partition(".")[0] in ("ourlib", "user", "helper")]:
            del sys.modules[name]
        found.append(digest(_fresh(package / "user.py")))

    assert found[0] == found[1] != found[2]


def _fresh(file: Path) -> Any:
    module = types.ModuleType("user")
    module.__file__ = str(file)
    sys.modules["user"] = module
    # Compiled here: a file of the same size and second would be taken from __pycache__.
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        exec(compile(file.read_text(), file, "exec"), vars(module))
    finally:
        sys.dont_write_bytecode = before
    return module.use  # type: ignore[attr-defined]


def test_what_was_replaced_in_a_loaded_module_is_seen(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package / "user.py").write_text(WAYS["a module's attribute"])
    use = _fresh(package / "user.py")
    before = digest(use)
    import ourlib  # type: ignore[import-not-found]

    monkeypatch.setattr(ourlib.ops, "scale", lambda x: x * 3)
    assert digest(use) != before


def test_a_librarys_function_that_was_replaced_is_seen_through_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def use(x: Any) -> Any:
        return torch.nn.functional.silu(x)

    before = digest(use)
    monkeypatch.setattr(torch.nn.functional, "silu", lambda x: x)
    assert digest(use) != before


def test_an_import_that_finds_nothing_is_unknown_unless_the_code_goes_on_without_it() -> None:
    def needs(x: Any) -> Any:
        import no_such_module  # type: ignore[import-not-found]

        return no_such_module.scale(x)

    def does_without(x: Any) -> Any:
        try:
            import no_such_module
        except ImportError:
            return x
        return no_such_module.scale(x)

    assert digest(needs) != digest(needs)
    assert sys.version_info < (3, 11) or digest(does_without) == digest(does_without)
