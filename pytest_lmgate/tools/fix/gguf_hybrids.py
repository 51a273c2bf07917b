"""Hybrids of two GGUF files of one model: a copy of one file with some tensors of the other, as they are stored.

`lmgate fix` measures them. No weight is quantized a second time: bytes and types are copied, and so is the metadata of
the file that the others go into.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pytest_lmgate.engines.base import Model, Runner
from pytest_lmgate.engines.llamacpp.gguf import LlamaCppRunner
from pytest_lmgate.errors import ModelError
from pytest_lmgate.tools.fix.hybrids import Part, PartSize, described_hybrid
from pytest_lmgate.tools.parts.blocks import Kind
from pytest_lmgate.tools.parts.tensors import KINDS, GgufFile, opened, write

# The numbers of ggml_type that llama-quantize writes, by its own names.
_TYPES = dict(enumerate(("f32", "f16", "q4_0", "q4_1", "", "", "q5_0", "q5_1", "q8_0", "q8_1", "q2_K", "q3_K", "q4_K",
    "q5_K", "q6_K", "q8_K", "iq2_xxs", "iq2_xs", "iq3_xxs", "iq1_s", "iq4_nl", "iq3_s", "iq2_s", "iq4_xs"))) | {
    29: "iq1_m", 30: "bf16", 34: "tq1_0", 35: "tq2_0", 39: "mxfp4", 40: "nvfp4",
}  # fmt: skip
_EMBEDDINGS, _HEAD = "token_embd.weight", "output.weight"
_MOST_BYTES = 2**24  # compared at a time


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
                kept = self._files[0].tensors
                write(file, self._files[1], {name: kept[name] for part in parts for name in part.paths})
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
        changed = {name: other.tensors[name] for name in tensors}
        self._open = key, opened(self._runners[healed], whole, changed)
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
        np.array_equal(one.stored[at : min(at + _MOST_BYTES, size)], other.stored[at : min(at + _MOST_BYTES, size)])
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


def _role(name: str) -> str:
    """Return the name of a tensor without its block."""
    return re.sub(r"^blk\.\d+\.", "", name)


def _tensor_type(name: str, kind: str) -> str:
    return f"--tensor-type '{re.escape(name)}={kind}'"
