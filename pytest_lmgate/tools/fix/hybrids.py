"""Hybrids of two causal models of one shape: one model with some parts of the other.

A hybrid shares the weights of both and so takes no memory. `lmgate why` and `lmgate fix` measure hybrids to find the
parts that a quantization or a fine-tune made worse. A hybrid whose first changed block is block i reads what block i-1
of the unchanged model gave for the same batch, so it costs the blocks from i on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pytest_lmgate.engines.base import Model, Runner
from pytest_lmgate.engines.transformers.loading import LoadedModel
from pytest_lmgate.engines.transformers.runner import TransformersRunner
from pytest_lmgate.errors import ModelError
from pytest_lmgate.tools.parts.blocks import (
    BlockMemory,
    BlockModel,
    Kind,
    can_reuse,
    kind_of,
    put_module,
    put_replays,
    with_blocks,
)
from pytest_lmgate.tools.parts.private import shallow_copy

OUTSIDE = "outside of the blocks"
"""The part outside of the blocks: embeddings, the last norm and the head, which may share weights."""
By = Literal["block", "group"]


@dataclass(frozen=True)
class Part:
    """A part of a model that a hybrid takes whole from one of the two models."""

    name: str  # as people read it
    kind: Kind  # what it is; ``rest`` are a block's norms and what else is in no group of the block
    # Paths of its modules. A block's path stands for what no other part of the block has, and the empty path for what
    # no other part of the model has.
    paths: tuple[str, ...]
    block: int | None = None  # number of its block; None outside of the blocks


@dataclass(frozen=True)
class PartSize:
    """What a part weighs."""

    bytes: tuple[int, int]  # of its stored tensors, in the reference and in the candidate
    matrices: tuple[int, int]  # numbers in the reference's matrices, which a quantizer may round, and their bytes


def described_hybrid(
    models: tuple[Model, Model], parts: Sequence[Part], exchanged: str, open_: Callable[[], Runner], *, healed: bool
) -> Model:
    """Return the model that a hybrid of a reference and a candidate is.

    `exchanged` are the parts in words, for its address in the cache. If `healed`, it is the candidate with the
    reference's parts, rather than the other way round.
    """
    reference, candidate = models
    whole, other = (candidate, reference) if healed else (reference, candidate)
    names = parts[0].name if len(parts) == 1 else f"{len(parts)} parts"
    return replace(
        whole,
        name=f"{whole.name} with {names} of {other.name}",
        open=open_,
        content={
            **{f"hybrid/{key}": value for key, value in (whole.content or {}).items()},
            **{f"part/{key}": value for key, value in other.ingredients.items()},
            "part": exchanged,
        },
        in_memory=True,
        not_kept=reference.not_kept or candidate.not_kept,
    )


class Hybrids:
    """Hybrids of a reference and a candidate of the same architecture and shape, both loaded by transformers.

    They are compared with the `original` and its runner, if it is not the reference.
    """

    def __init__(
        self,
        reference: Model,
        candidate: Model,
        runners: Sequence[Runner],
        *,
        by: By = "block",
        original: tuple[Model, Runner] | None = None,
    ) -> None:
        self._described = reference, candidate
        self._models = tuple(with_blocks(model, runner) for model, runner in zip(self._described, runners, strict=True))
        ours, theirs = self._models
        if (ours.path, len(ours.blocks)) != (theirs.path, len(theirs.blocks)):
            raise ModelError(
                f"models {candidate.name!r} and {reference.name!r} have different blocks: "
                f"{len(theirs.blocks)} in {theirs.path} and {len(ours.blocks)} in {ours.path}; expected a "
                "quantization or a fine-tune of the same model"
            )
        if ours.loaded.device != theirs.loaded.device:
            raise ModelError(
                f"model {candidate.name!r} is on {theirs.loaded.device}, and {reference.name!r} on "
                f"{ours.loaded.device}: expected both on one device, because a batch passes through blocks of both"
            )
        if ours.loaded.model.dtype != theirs.loaded.model.dtype:
            raise ModelError(
                f"model {candidate.name!r} computes in {_name(theirs)}, and {reference.name!r} in "
                f"{_name(ours)}: expected one dtype, because a batch passes through blocks of both; give both models "
                f"the same `dtype:`, such as `dtype: {_name(ours)}`"
            )
        self._all = list(_parts(*self._models, by=by))
        self._known = {path for part in self._all for path in part.paths}
        # In the order of the model: each block, or each group of its linear layers that differs between the two models,
        # and those outside of the blocks.
        self.parts = [part for part in self._all if by == "block" or self._differs(part, theirs)]
        with runners[0].measuring(), runners[1].measuring():
            # Whether hidden states of the reference, and of the candidate, can be reused.
            self.reuses = tuple(map(can_reuse, self._models))
        self._memories = BlockMemory(), BlockMemory()
        first, own_runner = original or (reference, runners[0])
        self._original, reuses = ours, self.reuses[0]
        if original is not None:
            self._original = with_blocks(first, own_runner)
            with own_runner.measuring():
                reuses = can_reuse(self._original)
        last = len(self._original.blocks) if reuses else 0
        runner = TransformersRunner(self._assembled(self._original, {}, last, BlockMemory()), first.context)
        # The original, which computes its blocks once for each batch.
        self.reference = replace(first, open=lambda: runner, in_memory=True)

    def model(self, *parts: Part, healed: bool) -> Model:
        """Return the reference with parts of the candidate or, if `healed`, the candidate with the reference's."""
        names = ", ".join(part.name for part in parts)
        return described_hybrid(self._described, parts, names, lambda: self._opened(parts, healed), healed=healed)

    def size(self, part: Part | None = None) -> PartSize:
        """Return the size of a part, or of the whole; tensors that several modules share count once."""
        ours, theirs = (self._tensors(model, part) for model in self._models)
        matrices = [tensor for tensor in ours if tensor.ndim >= 2]
        return PartSize((_bytes(ours), _bytes(theirs)), (sum(matrix.numel() for matrix in matrices), _bytes(matrices)))

    def linear(self, part: Part) -> list[str]:
        """Return the paths of a part's linear layers; fused experts have one path together."""
        linears, model = [], self._models[0]
        for path in part.paths:
            for name, module in model[path].named_modules(prefix=path):
                weight = getattr(module, "weight", None)
                is_linear = isinstance(weight, Tensor) and weight.ndim == 2 and not isinstance(module, nn.Embedding)
                if (is_linear or (name == path and part.kind == "experts")) and self._owner(name) == path:
                    linears.append(name)
        return linears

    @property
    def unchanged(self) -> list[Part]:
        """The parts that both models have alike."""
        return [part for part in self._all if part not in self.parts]

    def is_original(self, part: Part) -> bool:
        """Return whether the reference has a part as the original does."""
        names = {name for name, _ in self._original.loaded.model.named_modules()}
        return names.issuperset(part.paths) and not self._differs(part, self._original)

    def _opened(self, parts: Sequence[Part], healed: bool) -> TransformersRunner:
        whole, other = self._models[::-1] if healed else self._models
        changed = {path: other for part in parts for path in part.paths}
        level = 0
        if len(parts) == 1 and self.reuses[healed]:  # the head follows all blocks; embeddings come before them
            level = len(whole.blocks) if parts[0].kind == "head" else parts[0].block or 0
        model = self._assembled(whole, changed, level, self._memories[healed])
        runner = TransformersRunner(model, self._described[0].context)
        runner.is_tried = True  # both models were
        return runner

    def _assembled(
        self, whole: BlockModel, changed: Mapping[str, BlockModel], level: int, memory: BlockMemory
    ) -> LoadedModel:
        """Return a copy of a model with some modules of another; only modules on the way to these are copied.

        The copy reads what was in front of the block number `level` from the memory.
        """
        chosen = {path: changed.get(path, whole) for part in self._all for path in part.paths}
        model = shallow_copy(chosen[""].loaded.model)
        copies: dict[str, nn.Module] = {"": model}
        for path in sorted(chosen, key=lambda path: (path.count("."), len(path))):
            if path and chosen[path] is not chosen[self._parent(path)]:
                put_module(copies, path, chosen[path][path])
        if level:
            put_replays(copies, whole, level, memory)
        return replace(whole.loaded, model=model)

    def _parent(self, path: str) -> str:
        """Return the path that holds a path's module where no part says otherwise: its block's, or the model's."""
        return self._owner(path.rpartition(".")[0])

    def _owner(self, name: str) -> str:
        """Return the path of the part that a module belongs to."""
        while name and name not in self._known:
            name = name.rpartition(".")[0]
        return name

    def _tensors(self, model: BlockModel, part: Part | None) -> list[Tensor]:
        tensors: dict[int | str, Tensor] = {}
        for path in part.paths if part else ("",):
            for name, tensor in model[path].state_dict(prefix=f"{path}." if path else "").items():
                is_own = part is None or self._owner(name.rpartition(".")[0]) == path
                if isinstance(tensor, Tensor) and is_own:
                    tensors |= {plain.data_ptr() or at: plain for at, plain in _plain(name, tensor)}
        return list(tensors.values())

    def _differs(self, part: Part, other: BlockModel) -> bool:
        ours, theirs = (self._tensors(model, part) for model in (self._models[0], other))
        return len(ours) != len(theirs) or not all(map(_equal, ours, theirs))


def _parts(ours: BlockModel, theirs: BlockModel, *, by: By) -> Iterator[Part]:
    for index, block in enumerate(ours.blocks):
        path = f"{ours.path}.{index}"
        groups = _groups(path, block, theirs) if by == "group" else {}
        for kind, paths in groups.items():
            yield Part(f"{path} {kind}", kind, tuple(paths), index)
        yield Part(f"{path} rest" if groups else path, "rest" if groups else "block", (path,), index)
    if by == "block":
        yield Part(OUTSIDE, "outside", ("",))
        return
    model = ours.loaded.model
    embeddings = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and not name.startswith(f"{ours.path}.")
    ]
    output = model.get_output_embeddings()
    head = [name for name, module in model.named_modules() if output is not None and module is output]
    tied = any(_is_tied(side.loaded.model) for side in (ours, theirs))
    if tied:
        yield Part("embeddings and head", "embeddings", tuple(dict.fromkeys([*embeddings, *head])))
    else:
        if head:
            yield Part("head", "head", tuple(head))
        if embeddings:
            yield Part("embeddings", "embeddings", tuple(embeddings))
    yield Part(f"rest {OUTSIDE}", "outside", ("",))


def _groups(path: str, block: nn.Module, other: BlockModel) -> dict[Kind, list[str]]:
    """Return the paths of the modules of each group of a block; none if most of its weights are in no group."""
    paths: dict[Kind, list[str]] = {}
    for name, module in block.named_modules():
        *before, last = name.split(".")
        if "experts" in before or not name:
            continue
        kind = kind_of(name)
        if last == "experts":
            kind = "experts"
        elif next(module.children(), None) is not None or not any(True for _ in module.parameters(recurse=False)):
            continue
        if kind is not None:
            paths.setdefault(kind, []).append(f"{path}.{name}")
    theirs = {name for name, _ in other.loaded.model.named_modules()}
    if not all(name in theirs for names in paths.values() for name in names):
        return {}
    modules = [block.get_submodule(name.removeprefix(f"{path}.")) for names in paths.values() for name in names]
    grouped = sum(parameter.numel() for module in modules for parameter in module.parameters())
    return paths if 2 * grouped > sum(parameter.numel() for parameter in block.parameters()) else {}


def _is_tied(model: Any) -> bool:
    output, given = model.get_output_embeddings(), model.get_input_embeddings()
    return output is not None and getattr(output, "weight", None) is getattr(given, "weight", output)


def _name(model: BlockModel) -> str:
    return str(model.loaded.model.dtype).removeprefix("torch.")


def _plain(name: str, tensor: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that a tensor wraps, as torchao's do: these can be compared, and have the bytes in memory."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield name, tensor
        return
    for inner in tensor.__tensor_flatten__()[0]:
        yield from _plain(f"{name}.{inner}", getattr(tensor, inner))


def _bytes(tensors: Collection[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and bool(torch.equal(one, other))
