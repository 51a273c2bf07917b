"""`Fault`: a known way to break a model at rising strength, planted in a copy of the model.

The copy shares the model's tensors, so the model itself keeps every bit. Strength 0 is the model, and strength n the
n-th of the fault's levels, from the weakest to the strongest.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from pytest_lmgate.engines.transformers.blocks import BlockModel, copied, linear_layers, put_parameter
from pytest_lmgate.engines.transformers.loading import LoadedModel
from pytest_lmgate.errors import LmgateError
from pytest_lmgate.measure.rows import DatasetRows
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.windows.tokens import PromptIds, TokenizerFacts

Kind = Literal["weights", "structure", "arithmetic", "texts", "data"]
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
OF_BLOCKS = "{:.0%} of the blocks"


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

    @property
    def model(self) -> Any:
        return self.loaded.model

    def put(self, old: Tensor, new: Tensor) -> None:
        put_parameter(self.model, old, new)

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
        """Return a strength from 1 on in words."""
        return self.words.format(self.levels[strength - 1])

    def planted(self, model: BlockModel, tokenizer: TokenizerFacts, strength: int) -> Broken:
        """Return a broken copy of a model; with strength 0, a copy that gives the same bits."""
        loaded = copied(model.loaded)
        broken = Broken(loaded, BlockModel(loaded, model.path).blocks, tokenizer)
        if strength:
            with torch.no_grad():
                self.plant(broken, self.levels[strength - 1])
        return broken


def matrices(module: Any) -> list[tuple[str, Any]]:
    """Return the linear layers of a module, by their paths in it; NotPlanted if their weights are not plain floats."""
    layers = linear_layers(module)
    if not layers:
        raise NotPlanted("its blocks have no linear layers")
    if any(type(each.weight) is not nn.Parameter or not each.weight.is_floating_point() for _, each in layers):
        raise NotPlanted("its weights are stored in a quantized form")
    return layers


def rounded(values: Tensor, bits: float, axis: int) -> Tensor:
    """Round to the nearest of ``2**bits - 1`` levels around 0, with one scale along an axis: the largest value's."""
    most = 2 ** (int(bits) - 1) - 1
    scale = values.float().abs().amax(axis, keepdim=True) / most
    return torch.where(scale > 0, (values.float() / scale).round() * scale, 0.0).to(values.dtype)


def some(count: int, share: float) -> int:
    """Return a share of a count, at least one."""
    return max(1, math.ceil(share * count))
