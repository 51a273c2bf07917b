"""Hybrids of two causal models of one shape: one model with some blocks of the other.

A hybrid shares the weights of both and so takes no memory. `lmgate why` measures hybrids to find the blocks that a
quantization or a fine-tune made worse.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from pytest_lmgate.engines.base import Model, Runner
from pytest_lmgate.engines.transformers.loading import LoadedModel
from pytest_lmgate.engines.transformers.runner import TransformersRunner
from pytest_lmgate.errors import ModelError

OUTSIDE = "outside of the blocks"
"""The part that is no block: embeddings, the last norm and the head, which may share weights."""


@dataclass(frozen=True)
class _Loaded:
    loaded: LoadedModel
    path: str

    @property
    def blocks(self) -> list[nn.Module]:
        found: Any = self.loaded.model.get_submodule(self.path)
        return list(found)


class Hybrids:
    """Hybrids of a reference and a candidate of the same architecture and shape, both loaded by transformers.

    Attributes:
        parts: Names of the parts: each block, and `OUTSIDE`.
    """

    def __init__(self, reference: Model, candidate: Model, runners: tuple[Runner, Runner]) -> None:
        self._described = reference, candidate
        self._models = tuple(
            _with_blocks(model, runner) for model, runner in zip(self._described, runners, strict=True)
        )
        ours, theirs = self._models
        if (ours.path, len(ours.blocks)) != (theirs.path, len(theirs.blocks)):
            raise ModelError(
                f"model {candidate.name!r} and its reference {reference.name!r} have different blocks: "
                f"{len(theirs.blocks)} in {theirs.path} and {len(ours.blocks)} in {ours.path}; expected a "
                "quantization or a fine-tune of the same model"
            )
        if ours.loaded.device != theirs.loaded.device:
            raise ModelError(
                f"model {candidate.name!r} is on {theirs.loaded.device}, and its reference {reference.name!r} on "
                f"{ours.loaded.device}: expected both on one device, because a batch passes through blocks of both"
            )
        if ours.loaded.model.dtype != theirs.loaded.model.dtype:
            raise ModelError(
                f"model {candidate.name!r} computes in {_name(theirs)}, and its reference {reference.name!r} in "
                f"{_name(ours)}: expected one dtype, because a batch passes through blocks of both; give both models "
                f"the same `dtype:`, such as `dtype: {_name(ours)}`"
            )
        self.parts = (*(f"{ours.path}.{index}" for index in range(len(ours.blocks))), OUTSIDE)

    def model(self, part: str, *, healed: bool) -> Model:
        """Return the reference with one part of the candidate or, if `healed`, the candidate with the reference's."""
        reference, candidate = self._described
        whole, other = (candidate, reference) if healed else (reference, candidate)
        content = {
            **{f"hybrid/{key}": value for key, value in (whole.content or {}).items()},
            **{f"part/{key}": value for key, value in other.ingredients.items()},
            "part": part,
        }
        return replace(
            whole,
            name=f"{whole.name} with {part} of {other.name}",
            open=lambda: TransformersRunner(self._mixed(part, healed=healed), reference.context),
            content=content,
            in_memory=True,
            not_kept=reference.not_kept or candidate.not_kept,
        )

    def _mixed(self, part: str, *, healed: bool) -> LoadedModel:
        whole, other = self._models[::-1] if healed else self._models
        if part == OUTSIDE:
            # The other model's embeddings and head around the blocks of this one.
            return _assembled(other, whole.blocks)
        index = self.parts.index(part)
        blocks = whole.blocks
        return _assembled(whole, [*blocks[:index], other.blocks[index], *blocks[index + 1 :]])


def _with_blocks(model: Model, runner: Runner) -> _Loaded:
    if not isinstance(runner, TransformersRunner) or model.kind != "causal":
        raise ModelError(f"model {model.name!r}: expected a causal model that transformers runs")
    lists = [
        (path, module)
        for path, module in runner.loaded.model.named_modules()
        if isinstance(module, nn.ModuleList) and len({type(block) for block in module}) == 1
    ]
    if not lists:
        raise ModelError(f"model {model.name!r}: expected blocks in a list, as transformers' decoders have them")
    # The outermost of lists of equal length: the experts of a block are a list too.
    path, _ = max(lists, key=lambda each: (len(each[1]), -each[0].count(".")))
    return _Loaded(runner.loaded, path)


def _name(model: _Loaded) -> str:
    return str(model.loaded.model.dtype).removeprefix("torch.")


def _assembled(shell: _Loaded, blocks: Collection[nn.Module]) -> LoadedModel:
    """Return a copy of a model with other blocks; only the modules on the way to the blocks are copied."""
    model = _shallow(shell.loaded.model)
    inner, names = model, shell.path.split(".")
    for name in names[:-1]:
        below = _shallow(inner.get_submodule(name))
        inner._modules[name] = below
        inner = below
    inner._modules[names[-1]] = nn.ModuleList(blocks)
    return replace(shell.loaded, model=model)


def _shallow(module: nn.Module) -> nn.Module:
    other = copy.copy(module)
    other._modules = dict(module._modules)
    return other
