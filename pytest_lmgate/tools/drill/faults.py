"""Faults: known ways to break a model, each at rising strength, and the table of them.

A fault changes a copy of the model that shares its tensors, so the model itself keeps every bit. Strength 0 is the
model, and strength n the n-th of the fault's levels, from the weakest to the strongest. Here are the base class, and
the faults of weights and arithmetic; `structure` and `texts` have the others.
"""

from __future__ import annotations

import abc
import copy
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from pytest_lmgate.engines.transformers.blocks import BlockModel, kind_of
from pytest_lmgate.engines.transformers.loading import LoadedModel
from pytest_lmgate.errors import ConfigError, LmgateError, nearest
from pytest_lmgate.measure.rows import DatasetRows
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.windows.tokens import PromptIds, TokenizerFacts

Kind = Literal["weights", "structure", "arithmetic", "texts", "data"]
_GROUP = "pytest_lmgate.faults"


class NotPlanted(LmgateError):
    """A fault that cannot be planted in a model; the message is the reason."""


@dataclass
class Broken:
    """A copy of a loaded model that a fault may change.

    Attributes:
        loaded: The copy, which shares the tensors of the model.
        blocks: Its blocks.
        tokenizer: What the runner reads texts with.
        settings: Replaces the settings by which the runner generates texts.
        prompt: Replaces a prompt that the runner goes on from.
        first: The number of the first block that differs from the model's; the hidden states in front of it are equal.
    """

    loaded: LoadedModel
    blocks: Sequence[Any]
    tokenizer: TokenizerFacts
    settings: Callable[[GenerationSettings], GenerationSettings] = lambda settings: settings
    prompt: Callable[[PromptIds], PromptIds] = lambda prompt: prompt
    first: int = 0

    @classmethod
    def of(cls, model: BlockModel, tokenizer: TokenizerFacts) -> Broken:
        """Copy a model with its configuration and its modules; the tensors of both are the same."""
        whole = model.loaded.model
        shared = {id(tensor): tensor for tensor in (*whole.parameters(), *whole.buffers())}
        loaded = replace(model.loaded, model=copy.deepcopy(whole, shared))
        return cls(loaded, BlockModel(loaded, model.path).blocks, tokenizer)

    @property
    def model(self) -> Any:
        return self.loaded.model

    def put(self, old: Tensor, new: Tensor) -> None:
        """Replace a parameter wherever the copy has it: tied weights stay tied."""
        parameter = nn.Parameter(new.to(old.dtype), requires_grad=False)
        for module in self.model.modules():
            for name, held in list(module.named_parameters(recurse=False)):
                if held is old:
                    setattr(module, name, parameter)

    def last(self, share: float) -> Sequence[Any]:
        """Return the last blocks, a share of all and at least one; the blocks in front of them are not changed."""
        self.first = len(self.blocks) - math.ceil(share * len(self.blocks))
        return self.blocks[self.first :]

    def middle(self) -> Any:
        """Return the block in the middle; the blocks in front of it are not changed."""
        self.first = len(self.blocks) // 2
        return self.blocks[self.first]

    def holders(self, *names: str) -> Iterator[tuple[Any, str, float]]:
        """Yield the configurations and modules that have a number under one of these names, with name and number."""
        configs = {id(config): config for module in self.model.modules() for config in _configs(module)}
        for held in (*configs.values(), *self.model.modules()):
            for name in names:
                value = vars(held).get(name)
                if isinstance(value, int | float) and not isinstance(value, bool):
                    yield held, name, value


def _configs(module: Any) -> Iterator[Any]:
    config = getattr(module, "config", None)
    if hasattr(config, "to_dict"):
        yield config
        yield from (part for part in vars(config).values() if hasattr(part, "to_dict"))


@dataclass(frozen=True)
class Fault(abc.ABC):
    """A way to break a model.

    Attributes:
        name: By which a user calls it.
        sentence: What is broken, as people say it.
        levels: The size of the fault at strength 1, 2 and so on, from the weakest to the strongest.
        words: A level as people read it, as in ``{:g} bits``.
        kind: Which part of a system the fault is in.
    """

    name: str
    sentence: str
    levels: tuple[float, ...]
    words: str
    kind: ClassVar[Kind] = "weights"

    @abc.abstractmethod
    def plant(self, broken: Broken, level: float) -> None:
        """Break the copy of a model; NotPlanted if it lacks what is to be broken."""

    def rows(self, rows: DatasetRows, level: float) -> DatasetRows:
        """Return the dataset as the broken system reads it."""
        del level
        return rows

    def shown(self, strength: int) -> str:
        """Return a strength in words."""
        return self.words.format(self.levels[strength - 1]) if strength else "none"

    def planted(self, model: BlockModel, tokenizer: TokenizerFacts, strength: int) -> Broken:
        """Return a broken copy of a model; with strength 0, a copy that gives the same bits."""
        broken = Broken.of(model, tokenizer)
        if strength:
            with torch.no_grad():
                self.plant(broken, self.levels[strength - 1])
        return broken


def matrices(module: Any) -> list[tuple[str, Any]]:
    """Return the linear layers of a module, by their paths in it; NotPlanted if their weights are not plain floats."""
    layers = [
        (name, layer)
        for name, layer in module.named_modules()
        if isinstance(getattr(layer, "weight", None), Tensor)
        and layer.weight.ndim == 2
        and not isinstance(layer, nn.Embedding)
        and "lora_" not in name
    ]
    if not layers:
        raise NotPlanted("its blocks have no linear layers")
    for _, layer in layers:
        if type(layer.weight) not in (Tensor, nn.Parameter) or not layer.weight.is_floating_point():
            raise NotPlanted("its weights are stored in a quantized form")
    return layers


def by_output(layer: Any) -> int:
    """Return the axis of a weight along which the outputs of a linear layer lie; transformers' Conv1D transposes it."""
    return 1 if type(layer).__name__ == "Conv1D" else 0


def rounded(values: Tensor, bits: float, axis: int) -> Tensor:
    """Round to the nearest of ``2**bits - 1`` levels around 0, with one scale along an axis: the largest value's."""
    most = 2 ** (int(bits) - 1) - 1
    scale = values.float().abs().amax(axis, keepdim=True) / most
    return torch.where(scale > 0, (values.float() / scale).round() * scale, 0.0).to(values.dtype)


def some(count: int, share: float) -> int:
    """Return a share of a count, at least one."""
    return max(1, math.ceil(share * count))


_BITS = (8, 7, 6, 5, 4, 3, 2)
_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
_OF_BLOCKS = "{:.0%} of the blocks"
Place = Literal["first", "middle", "last"]


@dataclass(frozen=True)
class RoundedBlock(Fault):
    place: Place = "middle"

    def plant(self, broken: Broken, level: float) -> None:
        broken.first = {"first": 0, "middle": len(broken.blocks) // 2, "last": len(broken.blocks) - 1}[self.place]
        for _, layer in matrices(broken.blocks[broken.first]):
            broken.put(layer.weight, rounded(layer.weight, level, 1 - by_output(layer)))


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
        scales = torch.ones(layer.weight.shape[by_output(layer)], device=layer.weight.device)
        scales[: some(len(scales), level)] = 2
        broken.put(layer.weight, layer.weight.float() * scales.unsqueeze(1 - by_output(layer)))


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
        weight, axis = layer.weight.clone(), by_output(layer)
        rows = some(weight.shape[axis], level)
        weight.narrow(axis, 0, rows).copy_(theirs.weight.narrow(axis, 0, rows))
        broken.put(layer.weight, weight)


class LostBiases(Fault):
    def plant(self, broken: Broken, level: float) -> None:
        biases = [
            parameter
            for block in broken.last(level)
            for name, parameter in block.named_parameters()
            if name.endswith("bias") and parameter.ndim == 1
        ]
        if not any(bias.any() for bias in biases):
            raise NotPlanted("its blocks have no biases")
        for bias in biases:
            broken.put(bias, torch.zeros_like(bias))


class LostNorms(Fault):
    def plant(self, broken: Broken, level: float) -> None:
        norms = [
            module
            for block in broken.last(level)
            for module in block.modules()
            if "Norm" in type(module).__name__ and isinstance(getattr(module, "weight", None), Tensor)
        ]
        if not norms:
            raise NotPlanted("its blocks have no norms with a weight")
        for norm in norms:
            lost = torch.zeros_like(norm.weight)
            broken.put(norm.weight, lost)
            try:  # some multiply by 1 + weight: with a weight of 0 these let a vector pass
                passes = bool(norm(torch.randn(1, 1, *lost.shape, dtype=lost.dtype, device=lost.device)).any())
            except Exception:  # a norm with more than one input
                passes = False
            if not passes:
                broken.put(norm.weight, torch.ones_like(lost))


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


_BUILT_IN: tuple[Fault, ...] = (
    *(
        RoundedBlock(f"round-{place}", f"the {place} block is rounded to few bits", _BITS, "{:g} bits", place)
        for place in ("first", "middle", "last")
    ),
    Noise(
        "noise",
        "all blocks have noise in their weights",
        (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1),
        "{:.0%} of their spread",
    ),
    DoubledScale("scale", "a scale of the middle block is doubled", (1 / 64, *_SHARES), "{:.2g} of its rows"),
    OtherLayer(
        "wrong-layer", "a tensor of the middle block is the one before", (1 / 64, *_SHARES), "{:.2g} of its rows"
    ),
    LostBiases("bias", "biases are not loaded", _SHARES, _OF_BLOCKS),
    LostNorms("norm", "weights of norms are not loaded", _SHARES, _OF_BLOCKS),
    LostAdapter("base", "the adapter is not applied", (1 / 8, 1 / 4, 1 / 2, 1), "{:.0%} of it lost"),
    *(
        Narrow(name, f"weights are rounded to {words}", _SHARES[1:], _OF_BLOCKS, dtype)
        for name, words, dtype in (
            ("bfloat16", "bfloat16", torch.bfloat16),
            ("float16", "float16", torch.float16),
            ("fp8-e4m3", "FP8 (e4m3)", torch.float8_e4m3fn),
            ("fp8-e5m2", "FP8 (e5m2)", torch.float8_e5m2),
        )
    ),
    RoundedActivations("activations", "activations are rounded to few bits", _BITS[:-1], "{:g} bits"),
)


def known_faults() -> dict[str, Fault]:
    """Return all faults by name: those of this package, and those that installed packages register.

    An entry point of the group ``pytest_lmgate.faults`` is a `Fault`, or returns one when it is called.
    """
    from pytest_lmgate.tools.drill.structure import STRUCTURE
    from pytest_lmgate.tools.drill.texts import TEXTS

    faults = {fault.name: fault for fault in (*_BUILT_IN, *STRUCTURE, *TEXTS)}
    for entry in entry_points(group=_GROUP):
        loaded = entry.load()
        fault = loaded if isinstance(loaded, Fault) else loaded()
        if not isinstance(fault, Fault) or fault.name in faults:
            raise ConfigError(
                f"entry point {entry.name} of {_GROUP}: expected a Fault with a name of its own, got {fault!r:.80}"
            )
        faults[fault.name] = fault
    return faults


def chosen_faults(names: str | None) -> list[Fault]:
    """Return the faults with these names, written with commas between; a name may be a kind, and none means all."""
    faults = known_faults()
    if names is None:
        return list(faults.values())
    chosen: dict[str, Fault] = {}
    kinds = {fault.kind for fault in faults.values()}
    for name in map(str.strip, names.split(",")):
        matching = {key: fault for key, fault in faults.items() if name in (key, fault.kind)}
        if not matching:
            hint = nearest(name, [*faults, *kinds])
            raise ConfigError(f"--faults: no fault is called {name!r}{hint}; there are {', '.join(faults)}")
        chosen |= matching
    return list(chosen.values())
