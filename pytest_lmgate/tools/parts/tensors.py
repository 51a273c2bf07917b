"""The tensors of a GGUF file as they are stored, and copies of a file in which some are others.

`lmgate fix` and `lmgate drill` measure such copies. All other tensors and the metadata are copied byte by byte.
"""

from __future__ import annotations

import itertools
import math
import struct
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.engines.llamacpp import SPLIT
from pytest_lmgate.errors import ModelError
from pytest_lmgate.tools.parts.private import dequantized

if TYPE_CHECKING:
    from pytest_lmgate.engines.base import Runner
    from pytest_lmgate.engines.llamacpp.gguf import LlamaCppRunner
    from pytest_lmgate.tools.parts.blocks import Kind

# The tensors of a block that quantizers treat as one: gguf-py/gguf/constants.py of llama.cpp.
KINDS: dict[Kind, str] = {
    "qkv": r"attn_([qkv]|qkv|[qk]v?_[ab](_mqa)?|v_b)\.",
    "o": r"attn_output\.",
    "up": r"ffn_(gate|up)(_shexp)?\.",
    "down": r"ffn_down(_shexp)?\.",
    "experts": r"ffn_(gate|up|gate_up|down)_exps\.",
}
"""Regular expressions of the name behind the block's number."""
# Of a value in the metadata, by the number of its type: struct's format. 8 is a text, 9 a list.
_VALUES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_BFLOAT16 = 30
_FLOATS = {0: 4, 1: 2, _BFLOAT16: 2}  # bytes of a number of the types of plain floats: float32, float16, bfloat16


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file."""

    shape: tuple[int, ...]  # as GGUF orders it: of a matrix its inputs, then its outputs
    type: int  # number of its ggml_type
    stored: NDArray[Any]  # its bytes, which may include padding up to the alignment

    @property
    def bytes(self) -> int:
        return self.stored.nbytes

    @property
    def floats(self) -> NDArray[np.float32]:
        """Its numbers; of a matrix the shape is ``[outputs, inputs]``."""
        return dequantized(self.stored, self.type, math.prod(self.shape)).reshape(self.shape[::-1])


@dataclass(frozen=True)
class Changed:
    """A tensor whose numbers are a function of another's; they are made as the file is written."""

    origin: Tensor
    change: Callable[[NDArray[np.float32]], NDArray[np.float32]]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.origin.shape

    @property
    def type(self) -> int:
        """Its own type if that is one of 16-bit floats, else float32, so that the numbers are not rounded again."""
        return self.origin.type if self.origin.type in _FLOATS else 0

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * _FLOATS[self.type]

    @property
    def stored(self) -> NDArray[Any]:
        return _as_stored(self.change(self.origin.floats), self.type)


class GgufFile:
    """The tensors of a GGUF file by name, and its metadata as bytes."""

    def __init__(self, model: str, path: Path) -> None:
        self.model, self.path = model, path
        if SPLIT.fullmatch(path.name):
            raise ModelError(
                f"model {model!r}: {path} is one of several files: expected a GGUF in one file; join them by "
                "llama-gguf-split --merge"
            )
        with path.open("rb") as file:
            self._file = file
            magic, version, count, entries = struct.unpack("<4sIQQ", file.read(24))
            if magic != b"GGUF" or version not in (2, 3):
                raise ModelError(f"model {model!r}: {path}: expected a GGUF of version 2 or 3, little-endian")
            values: dict[str, object] = {}
            for _ in range(entries):
                key = self._text()
                values[key] = self._value(self._number("I"))
            metadata = slice(24, file.tell())
            listed = {self._text(): self._header() for _ in range(count)}
            end = file.tell()
        self.version, self.entries, self.values = version, entries, values
        self.architecture, alignment = values.get("general.architecture"), values.get("general.alignment", 32)
        assert isinstance(alignment, int)
        self.alignment = alignment
        first = end + -end % alignment
        ends = [*sorted(offset for _, _, offset in listed.values()), path.stat().st_size - first]
        after = dict(itertools.pairwise(ends))
        whole = np.memmap(path, mode="r")
        self.metadata = whole[metadata].tobytes()
        self.tensors = {
            name: Tensor(shape, kind, whole[first + offset : first + after[offset]])
            for name, (shape, kind, offset) in listed.items()
        }

    def _number(self, kind: str) -> int:
        size = struct.calcsize(f"<{kind}")
        found: int = struct.unpack(f"<{kind}", self._file.read(size))[0]
        return found

    def _text(self) -> str:
        return self._file.read(self._number("Q")).decode(errors="replace")

    def _value(self, kind: int) -> object:
        """Read a value; of a list only where it ends."""
        if kind == _TEXT:
            return self._text()
        if kind != _LIST:
            return self._number(_VALUES[kind])
        inner, count = self._number("I"), self._number("Q")
        if inner in _VALUES:
            self._file.seek(count * struct.calcsize(f"<{_VALUES[inner]}"), 1)
        else:
            for _ in range(count):
                self._value(inner)
        return None

    def _header(self) -> tuple[tuple[int, ...], int, int]:
        shape = tuple(self._number("Q") for _ in range(self._number("I")))
        return shape, self._number("I"), self._number("Q")


def opened(runner: LlamaCppRunner, whole: GgufFile, changed: Mapping[str, Tensor | Changed]) -> Runner:
    """Open a file with some other tensors as `runner` was; it is deleted as soon as llama.cpp has mapped it."""
    # Where a file in use cannot be deleted, as on Windows, it stays in the folder of temporary files.
    with tempfile.TemporaryDirectory(prefix="lmgate-", ignore_cleanup_errors=True) as folder:
        path = Path(folder, "changed.gguf")
        with path.open("wb") as file:
            write(file, whole, changed)
        return runner.reopened(path)


def write(file: IO[bytes], whole: GgufFile, changed: Mapping[str, Tensor | Changed]) -> None:
    """Write a file with some other tensors."""
    tensors = {**whole.tensors, **changed}
    file.write(struct.pack("<4sIQQ", b"GGUF", whole.version, len(tensors), whole.entries))
    file.write(whole.metadata)
    offset = 0
    for name, tensor in tensors.items():
        written, shape = name.encode(), tensor.shape
        file.write(struct.pack("<Q", len(written)) + written)
        file.write(struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, tensor.type, offset))
        offset += tensor.bytes + -tensor.bytes % whole.alignment
    for tensor in tensors.values():
        file.write(b"\0" * (-file.tell() % whole.alignment))
        file.write(tensor.stored.data)
    file.write(b"\0" * (-file.tell() % whole.alignment))


def _as_stored(numbers: NDArray[np.float32], kind: int) -> NDArray[Any]:
    """Return numbers as a type of plain floats stores them, rounded to the nearest."""
    numbers = np.ascontiguousarray(numbers, dtype=np.float32)
    if kind != _BFLOAT16:
        return numbers.astype(np.float16 if _FLOATS[kind] == 2 else np.float32)
    bits = numbers.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
