"""Faults in the structure of a model: blocks, heads, positions, windows of attention, and the scale of its logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pytest_lmgate.engines.transformers.blocks import kind_of, output_axis
from pytest_lmgate.tools.drill.planting import (
    OF_BLOCKS,
    SHARES,
    Broken,
    Fault,
    Kind,
    NotPlanted,
    matrices,
    some,
)

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
            attention, width = block.get_submodule(name.rpartition(".")[0]), layer.weight.shape[1 - output_axis(layer)]
            size = getattr(attention, "v_head_dim", None) or getattr(attention, "head_dim", None)
            if not isinstance(size, int) or width % size or width < 2 * size:
                raise NotPlanted("it does not say how wide a head of its attention is, or has one head")
            weight, axis = layer.weight.clone(), 1 - output_axis(layer)
            one, two = (layer.weight.narrow(axis, at, size) for at in (0, size))
            weight.narrow(axis, 0, size).copy_(one + two if self.repeated else two)
            weight.narrow(axis, size, size).copy_(torch.zeros_like(one) if self.repeated else one)
            broken.put(layer.weight, weight)


@dataclass(frozen=True)
class Rope(_InStructure):
    """Rotary frequencies have another base, or all are scaled."""

    scaled: bool = False

    def plant(self, broken: Broken, level: float) -> None:
        held = [
            (module, name, buffer)
            for module in broken.model.modules()
            for name, buffer in module.named_buffers(recurse=False)
            if name.endswith("inv_freq")
        ]
        if not held:
            raise NotPlanted("it keeps no rotary frequencies")
        for module, name, frequencies in held:
            at = torch.arange(len(frequencies), device=frequencies.device) / len(frequencies)
            setattr(module, name, frequencies / level if self.scaled else frequencies * level**-at)


class OffPositions(_InStructure):
    """Positions are too high from a token on, as where a prompt is read in two parts."""

    def plant(self, broken: Broken, level: float) -> None:
        def moved(ids: Any) -> Any:
            if not isinstance(ids, Tensor) or ids.is_floating_point():
                return ids
            return ids + int(level) * (ids >= _BEGIN)

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


@dataclass(frozen=True)
class Number(_InStructure):
    """A number of the configuration, which modules may hold too, is multiplied; or, as a power, moves to 1."""

    of: tuple[str, ...] = ()
    what: str = ""
    is_power: bool = False

    def plant(self, broken: Broken, level: float) -> None:
        held = [found for found in broken.holders(*self.of) if found[2] != 1]
        if not held:
            raise NotPlanted(f"it has no {self.what}")
        for holder, name, value in held:
            changed = value ** (1 - level) if self.is_power else value * level
            setattr(holder, name, max(1, int(changed)) if isinstance(value, int) else changed)


_FACTORS = (1.01, 1.05, 1.25, 2, 5, 10, 100)
_LONGER = (1.25, 2, 4, 1000)
_WINDOW = ("sliding_window", "attention_window_size"), "window of attention"
_CAP = ("final_logit_softcapping", "attn_logit_softcapping", "logits_soft_cap"), "soft cap of logits"
_SCALE = ("logit_scale", "logits_scaling"), "scale of logits"
STRUCTURE: tuple[Fault, ...] = (
    SkippedBlocks("skip", "blocks in the middle are skipped", SHARES, OF_BLOCKS),
    WrongHeads("heads-swapped", "two heads are swapped", SHARES, OF_BLOCKS),
    WrongHeads("heads-repeated", "a head is read twice", SHARES, OF_BLOCKS, repeated=True),
    Rope("rope-base", "the base of the rotary positions is wrong", _FACTORS, "{:g} times the base"),
    Rope("rope-scaling", "rotary positions are scaled", _FACTORS[:-1], "by 1/{:g}", scaled=True),
    OffPositions("position", f"positions are too high from token {_BEGIN} on", (1, 2, 4, 8, 16), "by {:g}"),
    Number("window", "the window of attention is too short", (0.75, *SHARES[-2::-1]), "{:g} of it", *_WINDOW),
    Number("no-window", "the window of attention is ignored", _LONGER, "{:g} times as long", *_WINDOW),
    Number("softcap", "the soft cap of logits is lost", _LONGER, "{:g} times as high", *_CAP),
    Number("logit-scale", "the scale of logits is lost", SHARES[1:], "{:.0%} of it", *_SCALE, is_power=True),
)
