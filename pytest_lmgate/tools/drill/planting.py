"""`Fault`: a known way to break a model at rising strength; `Broken`: a model that a fault may break, on any engine.

A broken model shares the tensors of the model, which keeps every bit. Strength n is the n-th of the fault's levels,
from the weakest to the strongest.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from msgspec import structs
from torch import Tensor

from pytest_lmgate.engines.base import Runner
from pytest_lmgate.errors import LmgateError
from pytest_lmgate.measure.rows import DatasetRows
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.tools.parts.blocks import put_parameter
from pytest_lmgate.windows.tokens import PromptIds, TokenizerFacts

Kind = Literal["weights", "structure", "arithmetic", "cache", "texts", "data"]
Change = Callable[[Tensor], Tensor]
SEED = 1234  # of texts that a gate would write greedily


class NotPlanted(LmgateError):
    """A fault that cannot be planted in a model, or in a dataset; the message is the reason."""


@dataclass(frozen=True)
class Weight:
    """A tensor of a block."""

    name: str  # in its block
    part: str | None  # as `blocks.kind_of` names it
    read: Callable[[], Tensor]  # returns its numbers; of a matrix the shape is ``[outputs, inputs]``
    change: Callable[[Change], None]  # replaces its numbers by a function of them


@dataclass
class Broken(abc.ABC):
    """A model that a fault may break.

    What an engine does not show of a model, its modules or its tensors, raises NotPlanted.

    Attributes:
        tokenizer: Reads texts.
        decoding: Overrides how texts are written, by the names of servers: ``temperature``, ``repetition_penalty``,
            ``ignore_eos``.
        cut: Tokens that prompts lose at their beginning.
        prompts: All prompts that texts are written for, the longest first.
        writes: Whether texts are written just now.
        first: The number of the first block that differs; the hidden states in front of it are equal.
    """

    tokenizer: TokenizerFacts
    decoding: dict[str, Any] = field(default_factory=dict)
    cut: int = 0
    prompts: Sequence[PromptIds] = ()
    writes: bool = False
    first: int = 0
    out_of_reach: ClassVar[str] = ""  # why not all of it can be broken

    @property
    def model(self) -> Any:
        """The module of transformers; its configuration and its modules are a copy."""
        raise NotPlanted(self.out_of_reach)

    @property
    def size(self) -> int:
        """The number of blocks."""
        raise NotPlanted(self.out_of_reach)

    def matrices(self, block: int) -> list[Weight]:
        """Return the linear layers of a block."""
        raise NotPlanted(self.out_of_reach)

    def vectors(self, block: int, what: Literal["bias", "norm"]) -> list[tuple[Weight, float]]:
        """Return the biases or the weights of norms of a block, with the value that they have in a new model."""
        raise NotPlanted(self.out_of_reach)

    @abc.abstractmethod
    def open(self) -> Runner:
        """Return what runs the broken model."""

    def put(self, old: Tensor, new: Tensor) -> None:
        put_parameter(self.model, old, new)

    def last(self, share: float) -> range:
        """Return the last blocks, a share of all and at least one; the blocks in front of them are not changed."""
        self.first = self.size - math.ceil(share * self.size)
        return range(self.first, self.size)

    def middle(self) -> int:
        """Return the block in the middle; the blocks in front of it are not changed."""
        self.first = self.size // 2
        return self.first

    def holders(self, *names: str) -> Iterator[tuple[Any, str, float]]:
        """Yield the configurations and modules that have a number under one of these names, with name and number."""
        configs = [module.config for module in self.model.modules() if hasattr(module, "config")]
        configs += [part for config in configs for part in vars(config).values() if hasattr(part, "to_dict")]
        for held in {id(each): each for each in (*configs, *self.model.modules())}.values():
            for name in names:
                value = vars(held).get(name)
                if isinstance(value, int | float) and not isinstance(value, bool):
                    yield held, name, value

    def begin(self, change: Callable[[list[int]], list[int]]) -> None:
        """Change the token ids of texts that begin with a special token."""
        facts = self.tokenizer

        def encode(text: str, special: bool) -> Sequence[int]:
            ids = list(facts.encode(text, special))
            return change(ids) if ids[:1] == [facts.bos] else ids

        adds_bos = change([0, 1])[0] == 0
        self.tokenizer = replace(facts, encode=encode, adds_bos=adds_bos, placed=lambda _, __: None)

    def write_chats(self, template: Callable[..., str]) -> None:
        if self.tokenizer.chat is None:
            raise NotPlanted("its tokenizer has no chat template")
        self.tokenizer = replace(self.tokenizer, chat=template)

    def decode(self, **fields: Any) -> None:
        """Override how texts are written."""
        self.decoding |= fields

    def speaking(self, runner: Any) -> Runner:
        """Have a runner read and write texts as this says."""
        runner.tokenizer = self.tokenizer
        for name in ("prepare_writing", "generate", "sample"):
            setattr(runner, name, partial(self._write, getattr(runner, name)))
        return runner  # type: ignore[no-any-return]

    def _write(self, write: Callable[..., Any], prompts: Sequence[PromptIds], settings: GenerationSettings) -> Any:
        prompts = [replace(each, ids=each.ids[min(self.cut, len(each.ids) - 1) :]) for each in prompts]
        self.prompts = self.prompts or prompts  # the first call prepares for all of them
        if (level := self.decoding.get("temperature")) is not None:
            seed = SEED if settings.seed is None else settings.seed
            settings = structs.replace(settings, temperature=level, num_beams=1, seed=seed)
        self.writes = True
        try:
            return write(prompts, settings)
        finally:
            self.writes = False


@dataclass(frozen=True)
class Fault:
    """A way to break a model.

    Attributes:
        name: By which a user calls it.
        sentence: What is broken, as people say it.
        levels: The size of the fault at strength 1, 2 and so on, from the weakest to the strongest.
        words: A level as people read it, as in ``{:g} bits``.
        plant: Breaks a model at a level; NotPlanted if it lacks what is to be broken. None leaves it as it is.
        kind: Which part of a system the fault is in.
        rows: Returns a dataset as the broken system reads it at a level; NotPlanted if it lacks what is to be broken.
        seen_by: The only gates that can see it, whose measurements need no try: those that write ``texts``, or those
            of ``chats``.
    """

    name: str
    sentence: str
    levels: tuple[float, ...]
    words: str
    plant: Callable[[Broken, float], None] | None = None
    kind: Kind = "weights"
    rows: Callable[[DatasetRows, float], DatasetRows] | None = None
    seen_by: Literal["all", "texts", "chats"] = "all"

    def shown(self, strength: int) -> str:
        """Return a strength from 1 on in words."""
        return self.words.format(self.levels[strength - 1])

    def planted(self, broken: Broken, strength: int) -> Broken:
        """Break a model; with strength 0 it gives the same bits."""
        if strength and self.plant is not None:
            with torch.no_grad():
                self.plant(broken, self.levels[strength - 1])
        return broken


def rounded(values: Tensor, bits: float) -> Tensor:
    """Round to the nearest of ``2**bits - 1`` levels around 0, with the largest value's scale along the last axis."""
    most = 2 ** (int(bits) - 1) - 1
    scale = values.float().abs().amax(-1, keepdim=True) / most
    return torch.where(scale > 0, (values.float() / scale).round() * scale, 0.0).to(values.dtype)
