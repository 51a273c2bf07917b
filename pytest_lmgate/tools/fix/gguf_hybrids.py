"""Hybrids of two GGUF files of one model: a copy of one file with some tensors of the other, as they are stored.

`lmgate fix` measures them. No weight is quantized a second time: bytes and types are copied, and so is the metadata of
the file that the others go into.
"""

from __future__ import annotations

import itertools
import re
import struct
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np

from pytest_lmgate.engines.base import Model, Runner
from pytest_lmgate.engines.llamacpp import SPLIT
from pytest_lmgate.engines.llamacpp.gguf import LlamaCppRunner
from pytest_lmgate.engines.transformers.blocks import Kind
from pytest_lmgate.errors import ModelError
from pytest_lmgate.tools.fix.hybrids import Part, PartSize, described_hybrid

# The numbers of ggml_type that llama-quantize writes, by its own names.
_TYPES = dict(enumerate(("f32", "f16", "q4_0", "q4_1", "", "", "q5_0", "q5_1", "q8_0", "q8_1", "q2_K", "q3_K", "q4_K",
    "q5_K", "q6_K", "q8_K", "iq2_xxs", "iq2_xs", "iq3_xxs", "iq1_s", "iq4_nl", "iq3_s", "iq2_s", "iq4_xs"))) | {
    29: "iq1_m", 30: "bf16", 34: "tq1_0", 35: "tq2_0", 39: "mxfp4", 40: "nvfp4",
}  # fmt: skip
# The tensors of a block that quantizers treat as one: gguf-py/gguf/constants.py of llama.cpp.
KINDS: dict[Kind, str] = {
    "qkv": r"attn_([qkv]|qkv|[qk]v?_[ab](_mqa)?|v_b)\.",
    "o": r"attn_output\.",
    "up": r"ffn_(gate|up)(_shexp)?\.",
    "down": r"ffn_down(_shexp)?\.",
    "experts": r"ffn_(gate|up|gate_up|down)_exps\.",
}
"""Regular expressions of the name behind the block's number."""
_EMBEDDINGS, _HEAD = "token_embd.weight", "output.weight"
# Of a value in the metadata, by the number of its type: struct's format. 8 is a text, 9 a list.
_VALUES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_MOST_BYTES = 2**24  # copied or compared at a time


@dataclass(frozen=True)
class _Tensor:
    """A tensor in a file; its bytes include the padding up to the alignment."""

    shape: tuple[int, ...]
    type: int
    begin: int
    bytes: int


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
            self.metadata = slice(24, file.tell())
            listed = {self._text(): self._header() for _ in range(count)}
            end = file.tell()
        self.version, self.entries = version, entries
        self.architecture, alignment = values.get("general.architecture"), values.get("general.alignment", 32)
        assert isinstance(alignment, int)
        self.alignment = alignment
        first = end + -end % alignment
        ends = [*sorted(offset for _, _, offset in listed.values()), path.stat().st_size - first]
        after = dict(itertools.pairwise(ends))
        self.tensors = {
            name: _Tensor(shape, kind, first + offset, after[offset] - offset)
            for name, (shape, kind, offset) in listed.items()
        }
        self.bytes = np.memmap(path, mode="r")

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


class GgufHybrids:
    """Hybrids of a reference and a candidate that are GGUF files of one model.

    One is open at a time. Its file is deleted as soon as llama.cpp has mapped it into memory.
    """

    def __init__(self, reference: Model, candidate: Model, runners: Sequence[Runner]) -> None:
        self._described = reference, candidate
        assert isinstance(runners[0], LlamaCppRunner)
        assert isinstance(runners[1], LlamaCppRunner)
        self._runners = runners[0], runners[1]
        ours, theirs = self._files = (
            GgufFile(reference.name, self._runners[0].file),
            GgufFile(candidate.name, self._runners[1].file),
        )
        _require_alike(ours, theirs)
        differing = [name for name in ours.tensors if not _is_equal(ours, theirs, name)]
        self.parts = _parts(differing, is_tied=_HEAD not in ours.tensors)  # in the order of the model
        if self.parts and not any(ours.tensors[name].bytes > theirs.tensors[name].bytes for name in differing):
            raise ModelError(
                f"model {candidate.name!r}: no tensor of {reference.name!r} takes more bytes: expected a file with "
                "more bits, such as F16"
            )
        self._open: tuple[tuple[tuple[str, ...], bool], Runner] | None = None

    def model(self, *parts: Part, healed: bool) -> Model:
        """Return the reference with parts of the candidate or, if `healed`, the candidate with the reference's."""
        tensors = tuple(name for part in parts for name in part.paths)
        made = described_hybrid(
            self._described, parts, ", ".join(tensors), lambda: self._opened(tensors, healed), healed=healed
        )
        changed = [model.changed for model in self._described]
        return replace(made, files=None, changed=lambda: [path for each in changed for path in each()])

    def size(self, part: Part | None = None) -> PartSize:
        """Return the bytes of a part in both files, or of all tensors."""
        ours, theirs = (
            sum(file.tensors[name].bytes for name in (part.paths if part else file.tensors)) for file in self._files
        )
        return PartSize((ours, theirs), (0, 0))

    def tensor_types(self, parts: Sequence[Part]) -> list[str]:
        """Return the options by which llama-quantize gives the tensors of parts the reference's types."""
        options, tensors = [], self._files[0].tensors
        for part in parts:
            by_type: dict[str, list[str]] = {}
            for name in part.paths:
                if not (kind := _TYPES.get(tensors[name].type, "")):
                    raise ModelError(
                        f"model {self._described[0].name!r}: {name} has the type {tensors[name].type} of ggml, for "
                        "which lmgate fix knows no name: expected a file such as F16"
                    )
                by_type.setdefault(kind, []).append(name)
            for kind, names in by_type.items():
                if part.kind in ("embeddings", "head"):
                    if part.kind == "embeddings":
                        options.append(f"--token-embedding-type {kind}")
                    if part.kind == "head" or _HEAD not in tensors:
                        options.append(f"--output-tensor-type {kind}")
                else:
                    options += [_tensor_type(name, kind) for name in names]
        return options + self._types_of_mixes({name for part in parts for name in part.paths})

    def _types_of_mixes(self, kept: set[str]) -> list[str]:
        """Return the options for tensors of the candidate that llama-quantize would give another type.

        It mixes types, as for Q4_K_M, by counting the tensors of a name that it has chosen a type for. So a tensor that
        is kept changes the types of those of the same name in other blocks.
        """
        by_role: dict[str, dict[str, str]] = {}
        for name, tensor in self._files[1].tensors.items():
            if kind := _TYPES.get(tensor.type):
                by_role.setdefault(_role(name), {})[name] = kind
        mixes = [by_role.get(role, {}) for role in sorted({_role(name) for name in kept})]
        mixed = [types for types in mixes if len(set(types.values())) > 1]
        return [_tensor_type(name, kind) for types in mixed for name, kind in types.items() if name not in kept]

    def write(self, parts: Sequence[Part], path: Path) -> None:
        """Write the candidate with parts of the reference; an interruption leaves no part of a file."""
        unfinished = path.with_name(f"{path.name}.part")
        try:
            with unfinished.open("wb") as file:
                _write(file, self._files[1], self._files[0], {name for part in parts for name in part.paths})
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    def _opened(self, tensors: tuple[str, ...], healed: bool) -> Runner:
        key = tensors, healed
        if self._open is not None and self._open[0] == key:
            return self._open[1]
        if self._open is not None:
            self._open[1].close()
            self._open = None
        whole, other = self._files[healed], self._files[not healed]
        # Where a file in use cannot be deleted, as on Windows, it stays in the folder of temporary files.
        with tempfile.TemporaryDirectory(prefix="lmgate-fix-", ignore_cleanup_errors=True) as folder:
            path = Path(folder, "hybrid.gguf")
            with path.open("wb") as file:
                _write(file, whole, other, set(tensors))
            self._open = key, self._runners[healed].reopened(path)
        return self._open[1]


def _require_alike(ours: GgufFile, theirs: GgufFile) -> None:
    where = f"models {theirs.model!r} and {ours.model!r}"
    what = "expected two files of one model, such as Q4_K_M and F16"
    for name in ("architecture", "alignment"):
        if (mine := getattr(ours, name)) != (other := getattr(theirs, name)):
            raise ModelError(f"{where}: the {name} is {other} in the one and {mine} in the other: {what}")
    if only := sorted(ours.tensors.keys() ^ theirs.tensors.keys()):
        raise ModelError(f"{where}: only one of them has {', '.join(only[:3])} ({len(only)} in all): {what}")
    for name, tensor in ours.tensors.items():
        if (shape := theirs.tensors[name].shape) != tensor.shape:
            raise ModelError(
                f"{where}: {name} is {list(shape)} in the one and {list(tensor.shape)} in the other: {what}"
            )


def _is_equal(ours: GgufFile, theirs: GgufFile, name: str) -> bool:
    one, other = ours.tensors[name], theirs.tensors[name]
    size = min(one.bytes, other.bytes)  # the last tensor of a file may not be filled up
    return one.type == other.type and all(
        np.array_equal(
            ours.bytes[one.begin + at : one.begin + min(at + _MOST_BYTES, size)],
            theirs.bytes[other.begin + at : other.begin + min(at + _MOST_BYTES, size)],
        )
        for at in range(0, size, _MOST_BYTES)
    )


def _parts(names: Collection[str], *, is_tied: bool) -> list[Part]:
    names_by_part: dict[tuple[str, Kind, int | None], list[str]] = {}
    key: tuple[str, Kind, int | None]
    for name in names:
        if match := re.fullmatch(r"blk\.(\d+)\.(.+)", name):
            kind: Kind = next((kind for kind, pattern in KINDS.items() if re.match(pattern, match[2])), "rest")
            key = f"blk.{match[1]} {kind}", kind, int(match[1])
        elif name == _EMBEDDINGS:
            key = ("embeddings and head" if is_tied else "embeddings", "embeddings", None)
        elif name == _HEAD:
            key = ("head", "head", None)
        else:
            key = ("rest outside of the blocks", "outside", None)
        names_by_part.setdefault(key, []).append(name)
    parts = [Part(name, kind, tuple(tensors), block) for (name, kind, block), tensors in names_by_part.items()]
    return sorted(parts, key=lambda part: (part.block is None, part.block or 0))


def _write(file: IO[bytes], whole: GgufFile, other: GgufFile, changed: Collection[str]) -> None:
    """Write a file with some tensors of the other."""
    sources: Mapping[str, GgufFile] = {name: other if name in changed else whole for name in whole.tensors}
    file.write(struct.pack("<4sIQQ", b"GGUF", whole.version, len(sources), whole.entries))
    file.write(whole.bytes[whole.metadata].tobytes())
    offset = 0
    for name, source in sources.items():
        tensor, written = source.tensors[name], name.encode()
        file.write(struct.pack("<Q", len(written)) + written)
        shape = tensor.shape
        file.write(struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, tensor.type, offset))
        offset += tensor.bytes + -tensor.bytes % whole.alignment
    for name, source in sources.items():
        file.write(b"\0" * (-file.tell() % whole.alignment))
        tensor = source.tensors[name]
        for at in range(tensor.begin, tensor.begin + tensor.bytes, _MOST_BYTES):
            file.write(source.bytes[at : min(at + _MOST_BYTES, tensor.begin + tensor.bytes)].tobytes())
    file.write(b"\0" * (-file.tell() % whole.alignment))


def _role(name: str) -> str:
    """Return the name of a tensor without its block."""
    return re.sub(r"^blk\.\d+\.", "", name)


def _tensor_type(name: str, kind: str) -> str:
    return f"--tensor-type '{re.escape(name)}={kind}'"
