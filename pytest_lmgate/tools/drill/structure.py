"""Faults in the structure of a model: blocks, heads, positions, windows of attention, and the scale of its logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pytest_lmgate.engines.transformers.blocks import kind_of
from pytest_lmgate.tools.drill.faults import Broken, Fault, Kind, NotPlanted, by_output, matrices, some

_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
_BEGIN = 16  # token from which positions are off: where a second part of a prompt could begin


@dataclass(frozen=True)
class _InStructure(Fault):
    kind: ClassVar[Kind] = "structure"


class SkippedBlocks(_InStructure):
    def plant(self, broken: Broken, level: float) -> None:
        count = some(len(broken.blocks), level)
        broken.first = (len(broken.blocks) - count) // 2
        for block in broken.blocks[broken.first : broken.first + count]:
            block.register_forward_hook(_skip, with_kwargs=True)


def _skip(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
    states = given[0] if given else named["hidden_states"]
    return states if isinstance(output, Tensor) else (states, *output[1:])


@dataclass(frozen=True)
class WrongHeads(_InStructure):
    """The first two heads of the attention are swapped, or the first is read twice: in what reads their output."""

    repeated: bool = False

    def plant(self, broken: Broken, level: float) -> None:
        for block in broken.last(level):
            name, layer = next(((name, layer) for name, layer in matrices(block) if kind_of(name) == "o"), ("", None))
            if layer is None:
                raise NotPlanted("its blocks have no attention with an output layer of a known name")
            attention, width = block.get_submodule(name.rpartition(".")[0]), layer.weight.shape[1 - by_output(layer)]
            size = getattr(attention, "v_head_dim", None) or getattr(attention, "head_dim", None)
            if not isinstance(size, int) or width % size or width < 2 * size:
                raise NotPlanted("it does not say how wide a head of its attention is, or has one head")
            weight, axis = layer.weight.clone(), 1 - by_output(layer)
            one, two = (layer.weight.narrow(axis, at, size) for at in (0, size))
            weight.narrow(axis, 0, size).copy_(one + two if self.repeated else two)
            weight.narrow(axis, size, size).copy_(torch.zeros_like(one) if self.repeated else one)
            broken.put(layer.weight, weight)


class RopeBase(_InStructure):
    def plant(self, broken: Broken, level: float) -> None:
        for module, name, frequencies in _frequencies(broken):
            at = torch.arange(len(frequencies), device=frequencies.device) / len(frequencies)
            setattr(module, name, frequencies * level**-at)


class RopeScaling(_InStructure):
    def plant(self, broken: Broken, level: float) -> None:
        for module, name, frequencies in _frequencies(broken):
            setattr(module, name, frequencies / level)


def _frequencies(broken: Broken) -> Iterator[tuple[nn.Module, str, Tensor]]:
    held = [
        (module, name, buffer)
        for module in broken.model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name.endswith("inv_freq")
    ]
    if not held:
        raise NotPlanted("it keeps no rotary frequencies")
    yield from held


class OffPositions(_InStructure):
    """Positions are too high from a token on, as where a prompt is read in two parts."""

    def plant(self, broken: Broken, level: float) -> None:
        def moved(ids: Any) -> Any:
            return (
                ids + int(level) * (ids >= _BEGIN) if isinstance(ids, Tensor) and not ids.is_floating_point() else ids
            )

        def off(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
            return tuple(map(moved, given)), {key: moved(value) for key, value in named.items()}

        held = [
            (module, type(module) is nn.Embedding)
            for name, module in broken.model.named_modules()
            if (last := name.rpartition(".")[2]).startswith("rotary_emb")
            or (type(module) is nn.Embedding and last in ("wpe", "embed_positions"))
        ]
        if not held:
            raise NotPlanted("it has no module of positions that is known")
        for module, is_table in held:
            module.register_forward_pre_hook(off, with_kwargs=True)
            if is_table:  # the last position has none behind it
                most = module.num_embeddings - 1
                module.register_forward_pre_hook(lambda _, given, most=most: (given[0].clamp(max=most),))


class Windows(_InStructure):
    def plant(self, broken: Broken, level: float) -> None:
        held = list(broken.holders("sliding_window", "attention_window_size"))
        if not held:
            raise NotPlanted("its attention has no window")
        for holder, name, value in held:
            setattr(holder, name, max(1, int(value * level)))


class Softcaps(_InStructure):
    def plant(self, broken: Broken, level: float) -> None:
        held = list(broken.holders("final_logit_softcapping", "attn_logit_softcapping", "logits_soft_cap"))
        if not held:
            raise NotPlanted("its logits have no soft cap")
        for holder, name, value in held:
            setattr(holder, name, value * level)


class LogitScales(_InStructure):
    def plant(self, broken: Broken, level: float) -> None:
        held = [found for found in broken.holders("logit_scale", "logits_scaling") if found[2] != 1]
        if not held:
            raise NotPlanted("its logits have no scale")
        for holder, name, value in held:
            setattr(holder, name, value ** (1 - level))


_FACTORS = (1.01, 1.05, 1.25, 2, 5, 10, 100)
_OF_BLOCKS = "{:.0%} of the blocks"
STRUCTURE: tuple[Fault, ...] = (
    SkippedBlocks("skip", "blocks in the middle are skipped", _SHARES, _OF_BLOCKS),
    WrongHeads("heads-swapped", "two heads are swapped", _SHARES, _OF_BLOCKS),
    WrongHeads("heads-repeated", "a head is read twice", _SHARES, _OF_BLOCKS, repeated=True),
    RopeBase("rope-base", "the base of the rotary positions is wrong", _FACTORS, "{:g} times the base"),
    RopeScaling("rope-scaling", "rotary positions are scaled", _FACTORS[:-1], "by 1/{:g}"),
    OffPositions("position", f"positions are too high from token {_BEGIN} on", (1, 2, 4, 8, 16), "by {:g}"),
    Windows("window", "the window of attention is too short", (3 / 4, 1 / 2, 1 / 4, 1 / 8, 1 / 16), "{:g} of it"),
    Windows("no-window", "the window of attention is ignored", (1.25, 2, 4, 1000), "{:g} times as long"),
    Softcaps("softcap", "the soft cap of logits is lost", (1.25, 2, 4, 1000), "{:g} times as high"),
    LogitScales("logit-scale", "the scale of logits is lost", (1 / 8, 1 / 4, 1 / 2, 1), "{:.0%} of it"),
)
