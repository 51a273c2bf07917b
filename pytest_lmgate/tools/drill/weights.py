"""Faults of weights: rounding, noise, tensors that are lost or mixed up; and of the arithmetic that they are in."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import ClassVar, Literal

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
    rounded,
    some,
)

_BITS = (8, 7, 6, 5, 4, 3, 2)
Place = Literal["first", "middle", "last"]


@dataclass(frozen=True)
class RoundedBlock(Fault):
    place: Place = "middle"

    def plant(self, broken: Broken, level: float) -> None:
        broken.first = {"first": 0, "middle": len(broken.blocks) // 2, "last": len(broken.blocks) - 1}[self.place]
        for _, layer in matrices(broken.blocks[broken.first]):
            broken.put(layer.weight, rounded(layer.weight, level, 1 - output_axis(layer)))


class Noise(Fault):
    def plant(self, broken: Broken, level: float) -> None:
        for name, layer in matrices(nn.ModuleList(broken.blocks)):
            weight, generator = layer.weight, torch.Generator().manual_seed(zlib.crc32(name.encode()))
            drawn = torch.randn(weight.shape, generator=generator).to(weight.device)
            broken.put(weight, weight.float() + level * weight.float().std() * drawn)


class DoubledScale(Fault):
    def plant(self, broken: Broken, level: float) -> None:
        layers = matrices(broken.middle())
        layer = next((layer for name, layer in layers if kind_of(name) == "down"), layers[-1][1])
        scales = torch.ones(layer.weight.shape[output_axis(layer)], device=layer.weight.device)
        scales[: some(len(scales), level)] = 2
        broken.put(layer.weight, layer.weight.float() * scales.unsqueeze(1 - output_axis(layer)))


class OtherLayer(Fault):
    def plant(self, broken: Broken, level: float) -> None:
        block = broken.middle()
        other = broken.blocks[broken.first - 1]
        if other is block:
            raise NotPlanted("it has one block only")
        name, layer = max(matrices(block), key=lambda entry: entry[1].weight.numel())
        theirs = dict(matrices(other)).get(name)
        if theirs is None or theirs.weight.shape != layer.weight.shape:
            raise NotPlanted("the layer before has no tensor of this name and shape")
        weight, axis = layer.weight.clone(), output_axis(layer)
        rows = some(weight.shape[axis], level)
        weight.narrow(axis, 0, rows).copy_(theirs.weight.narrow(axis, 0, rows))
        broken.put(layer.weight, weight)


@dataclass(frozen=True)
class LostVectors(Fault):
    """Biases, or weights of norms, are those of a new model."""

    what: Literal["bias", "norm"] = "bias"

    def plant(self, broken: Broken, level: float) -> None:
        lost: list[tuple[Tensor, Tensor]] = []
        for module in nn.ModuleList(broken.last(level)).modules():
            name, kind = ("weight", type(module).__name__) if self.what == "norm" else ("bias", "")
            held = getattr(module, name, None)
            if isinstance(held, nn.Parameter) and held.ndim == 1 and ("Norm" in kind or not kind):
                value = float(self.what == "norm" and "Gemma" not in kind)  # Gemma's multiply by 1 + weight
                lost.append((held, torch.full_like(held, value)))
        if all(torch.equal(*pair) for pair in lost):
            raise NotPlanted(f"its blocks have no {self.what} with a value of its own")
        for pair in lost:
            broken.put(*pair)


class LostAdapter(Fault):
    def plant(self, broken: Broken, level: float) -> None:
        layers = [module for module in broken.model.modules() if hasattr(module, "lora_A") and module.scaling]
        if not layers:
            raise NotPlanted("it has no LoRA adapter")
        for layer in layers:
            layer.scaling = {name: scale * (1 - level) for name, scale in layer.scaling.items()}


@dataclass(frozen=True)
class Narrow(Fault):
    """Weights in a narrower type; of 8 bits, with one scale for each tensor."""

    dtype: torch.dtype = torch.bfloat16
    kind: ClassVar[Kind] = "arithmetic"

    def plant(self, broken: Broken, level: float) -> None:
        changes = False
        for block in broken.last(level):
            for _, layer in matrices(block):
                weight, scale = layer.weight, torch.ones((), device=layer.weight.device)
                if self.dtype.itemsize == 1:
                    scale = weight.float().abs().max() / torch.finfo(self.dtype).max
                narrow = (weight.float() / scale).to(self.dtype).float() * scale if scale > 0 else weight.float()
                changes = changes or not torch.equal(narrow.to(weight.dtype), weight)
                broken.put(weight, narrow)
        if not changes:
            raise NotPlanted(f"its weights have no more digits than {str(self.dtype).removeprefix('torch.')}")


class RoundedActivations(Fault):
    kind: ClassVar[Kind] = "arithmetic"

    def plant(self, broken: Broken, level: float) -> None:
        for _, layer in matrices(nn.ModuleList(broken.blocks)):
            layer.register_forward_pre_hook(lambda _, given: (rounded(given[0], level, -1), *given[1:]))


WEIGHTS: tuple[Fault, ...] = (
    *(
        RoundedBlock(f"round-{place}", f"the {place} block is rounded to few bits", _BITS, "{:g} bits", place)
        for place in ("first", "middle", "last")
    ),
    Noise("noise", "weights of all blocks have noise", (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1), "{:.0%} of their spread"),
    DoubledScale("scale", "a scale of the middle block is doubled", (1 / 64, *SHARES), "{:.2g} of its rows"),
    OtherLayer("wrong-layer", "a tensor is the one of the block before", (1 / 64, *SHARES), "{:.2g} of its rows"),
    LostVectors("bias", "biases are not loaded", SHARES, OF_BLOCKS),
    LostVectors("norm", "weights of norms are not loaded", SHARES, OF_BLOCKS, "norm"),
    LostAdapter("base", "the adapter is not applied", SHARES[1:], "{:.0%} of it lost"),
    *(
        Narrow(name, f"weights are rounded to {name}", SHARES[1:], OF_BLOCKS, dtype)
        for name, dtype in (
            ("bfloat16", torch.bfloat16),
            ("float16", torch.float16),
            ("fp8-e4m3", torch.float8_e4m3fn),
            ("fp8-e5m2", torch.float8_e5m2),
        )
    ),
    RoundedActivations("activations", "activations are rounded to few bits", _BITS[:-1], "{:g} bits"),
)
