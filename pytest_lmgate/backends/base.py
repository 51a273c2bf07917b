"""What an engine is: with a `Backend` and a `Runner`, every metric that they can serve works with the engine.

A `Backend` describes a model from its entry in lmgate.yaml without loading it: a `Model`. `Model.open` loads it: a
`Runner`, which has a tokenizer and scores requests. All else is done for every engine alike: windows, batches, halving
where memory runs out, progress, resuming, the cache, metrics and verdicts. A whole engine, which takes each of 64
tokens for equally likely::

    import numpy as np
    from pytest_lmgate.backends.base import Backend, Model, Runner
    from pytest_lmgate.data.tokens import TokenizerFacts

    class Die(Runner):
        tokenizer = TokenizerFacts(lambda text, special: [ord(letter) % 64 for letter in text])

        def score(self, requests):
            return [np.full(len(each.targets), np.log(64)) for each in requests]

    class Dice(Backend):
        name = "fair-die"

        def describe(self, entry):
            return Model(entry.name, open=Die, content={"sides": "64"}, runtime={"numpy": np.__version__})

    def pytest_lmgate_backends(config):  # in conftest.py
        return [Dice()]

and in lmgate.yaml, under ``models:``, ``die: {backend: fair-die}``.
"""

from __future__ import annotations

__all__ = [
    "Backend",
    "Batching",
    "Company",
    "Distributions",
    "Entry",
    "Kind",
    "Model",
    "Offer",
    "OutOfMemory",
    "Runner",
]

import contextlib
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.config.generation import GenerationSettings
from pytest_lmgate.config.specs import ModelSpec
from pytest_lmgate.data.prompting import PromptIds
from pytest_lmgate.data.requests import Request, Requests
from pytest_lmgate.data.tokens import TokenizerFacts
from pytest_lmgate.identity.files import Snapshot

Floats = NDArray[np.float64]
Kind = Literal["causal", "masked", "encoder-decoder"]
Offer = Literal["score", "generate", "compare"]


class OutOfMemory(Exception):
    """Raised by a runner where memory does not suffice for a batch: the batch is halved, and tried again.

    Args:
        where: The device.
        details: What the library said.
    """

    def __init__(self, where: str, details: str = "") -> None:
        super().__init__(where, details)
        self.where, self.details = where, details


class Company(enum.Enum):
    """Which requests a request may share a batch with, where its numbers must not depend on them."""

    ANY = "rows of any length"
    EQUAL = "rows of its own length"
    ALONE = "no other row"

    @classmethod
    def strictest(cls, companies: Iterable[Company]) -> Company:
        """Return the company that suits all of several models."""
        return max(companies, key=list(cls).index)


@dataclass(frozen=True)
class Batching:
    """How a runner wants its requests.

    Attributes:
        tokens: Tokens that a batch may hold, padding included.
        company: Which requests may share a batch.
        remark: What the session's summary should say of that, in a sentence; empty where there is nothing to say.
        is_double: Whether the model computes in float64, so that its numbers are kept in it.
    """

    tokens: int = 16384
    company: Company = Company.ANY
    remark: str = ""
    is_double: bool = False


class Distributions(Protocol):
    """A model's distributions over its vocabulary at some positions, each a tile at a time or whole."""

    @property
    def vocabulary_size(self) -> int:
        """Tokens of the vocabulary."""

    def against(self, candidate: Any, targets: NDArray[np.int64]) -> Floats:
        """Compare a candidate q with these, the reference's p.

        Args:
            candidate: The candidate's distributions at the same positions, over a vocabulary of the same size.
            targets: Token ids, shape ``[positions]``.

        Returns:
            Shape ``[positions, 5]``: KL(p || q) in nats, q - p of the target, whether both have the same most likely
            token, and the NLL of the target under p and under q.
        """

    def stored(self) -> Any:
        """Return what `restored` makes them of again, a tensor of shape ``[positions, ...]``."""

    def restored(self, parts: Sequence[Any]) -> Distributions:
        """Return the distributions that several of `stored` were made of, one after the other."""


class Runner:
    """A model that is loaded. A backend overrides what its model offers; only `score` and `tokenizer` are needed.

    Whatever is raised here, other than `OutOfMemory` and this package's errors, becomes an error that names the model
    and what it read.

    Attributes:
        tokenizer: What the planning needs to know of it.
    """

    tokenizer: TokenizerFacts

    def measuring(self) -> contextlib.AbstractContextManager[Any]:
        """Return what a measurement is to run within, as a library's evaluation mode."""
        return contextlib.nullcontext()

    def prepare(self, requests: Requests, *, compare: bool = False) -> Batching:
        """Look at what will be read before the first batch, and refuse what cannot be scored.

        Args:
            requests: All of a measurement.
            compare: Whether whole distributions will be asked for.

        Raises:
            ModelError: The model cannot give these numbers, as one that sees the tokens that it has to predict.
        """
        return Batching()

    def score(self, requests: Sequence[Request]) -> Sequence[Floats]:
        """Return the NLL in nats of each request's targets, shape ``[targets]`` each.

        Raises:
            OutOfMemory: Fewer requests may fit.
        """
        raise NotImplementedError

    def distributions(self, requests: Sequence[Request]) -> Distributions:
        """Return the distributions that predict the requests' targets, one request after the other.

        Raises:
            OutOfMemory: Fewer requests may fit.
        """
        raise NotImplementedError

    def prepare_writing(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Batching:
        """Look at the prompts before the first batch; tokens of a batch count prompts, texts and all beams.

        Args:
            prompts: All of a measurement, the longest first.
            settings: How to decode.
        """
        return Batching()

    def generate(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Sequence[tuple[str, int]]:
        """Write one text for each prompt.

        Returns:
            Texts without prompt and special tokens, and how many tokens each took.

        Raises:
            OutOfMemory: Fewer prompts may fit.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Give the memory back."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What the user says of a model, and what a backend may use to describe it.

    Attributes:
        name: The model's name, for messages.
        spec: Its entry in lmgate.yaml.
        path: Makes a path of the project whole.
        hub_id: Returns the repository and revision that a text names on the hub; None where it is written as a path.
        digest: Returns the SHA-256 of a file, looked up where the file has not changed.
        device: The device asked for; ``auto`` leaves it to the backend.
        dtype: The dtype asked for; ``auto`` is the model's own.
        offline: Whether nothing may be fetched.
        workers: Processes that share this machine's processors.
    """

    name: str
    spec: ModelSpec
    path: Callable[[str], Path]
    hub_id: Callable[[str], tuple[str, str | None] | None]
    digest: Callable[[Path], str]
    device: str = "auto"
    dtype: str = "auto"
    offline: bool = False
    workers: int = 1


@dataclass(frozen=True)
class Model:
    """A model that is described and not loaded.

    Attributes:
        name: As the user wrote it.
        open: Loads it.
        kind: What it predicts a token from.
        context: Tokens that it can read at once; None for no limit.
        content: Whatever of it can change a number, wherever it runs, as text: digests of its files, options of the
            entry. None where nothing tells: then its measurements are made in each session and never kept.
        runtime: What else can change a number: device class, versions of libraries.
        offers: What its engine can do.
        device: Where it will run.
        dtype: What it computes in, as far as that is known: another machine rounds it otherwise.
        weight_bytes: About what its weights take in memory.
        batch_size: Requests per batch, or ``auto``; filled in from the entry.
        architecture: What it is called in messages; empty where nothing says.
        in_memory: Whether it is the user's own object, which lives as long as the user wants.
        not_kept: Why its measurements may not be kept, in words; empty where they may.
        writing: What else can change a text that it writes.
        files: Its files as they were when they were hashed; None: it is described anew each time.
        changed: Returns the files that are no longer those that `content` tells of.
    """

    name: str
    open: Callable[[], Runner]
    kind: Kind = "causal"
    context: int | None = None
    content: Mapping[str, str] | None = None
    runtime: Mapping[str, str] = field(default_factory=dict)
    offers: frozenset[Offer] = frozenset({"score"})
    device: str = "cpu"
    dtype: str = "float32"
    weight_bytes: int = 0
    batch_size: int | str = "auto"
    architecture: str = ""
    in_memory: bool = False
    not_kept: str = ""
    writing: Callable[[], Mapping[str, str]] = dict
    files: Snapshot | None = None
    changed: Callable[[], Sequence[str]] = tuple

    @property
    def ingredients(self) -> dict[str, str]:
        """Everything that can change a number."""
        return {**(self.content or {}), **self.runtime}


class Backend(Protocol):
    """An engine.

    Attributes:
        name: As in ``backend: name`` in a model's entry.
        suffixes: Ends of paths that are this engine's without being told, as ``.gguf``.
    """

    name: str
    suffixes: tuple[str, ...] = ()

    def describe(self, entry: Entry) -> Model:
        """Describe a model without loading it.

        Raises:
            ModelError: Its files are not what they should be.
            ConfigError: Its entry is not.
        """
        ...
