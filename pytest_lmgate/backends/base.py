"""What an engine is: a `Backend` and a `Runner`, which together get every metric that they can serve.

`Backend.describe` makes a `Model` of an entry in lmgate.yaml without loading it. `Model.open` loads it and returns a
`Runner`, which has a tokenizer and scores requests. Everything else is the same for all engines: windows, batches,
halving where memory runs out, progress, resuming, the cache, metrics and verdicts. A whole engine, to which each of 64
tokens is equally likely::

    import numpy as np
    from pytest_lmgate.backends.base import Backend, Model, Runner
    from pytest_lmgate.data.tokenization.tokens import TokenizerFacts

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
    "SAMPLING",
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
    "Setting",
]

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.backends.batching import Batching, Company, OutOfMemory
from pytest_lmgate.config.arguments.generation import GenerationSettings
from pytest_lmgate.config.specs import ModelSpec
from pytest_lmgate.data.requests.requests import Request, Requests
from pytest_lmgate.data.tokenization.prompting import PromptIds
from pytest_lmgate.data.tokenization.tokens import TokenizerFacts
from pytest_lmgate.identity.files import Snapshot

Kind = Literal["causal", "masked", "encoder-decoder"]
Offer = Literal["score", "generate", "compare"]
# How a text may be written beside greedily: see `GenerationSettings`.
Setting = Literal["num_beams", "seed", "temperature", "top_p", "top_k"]
SAMPLING: frozenset[Setting] = frozenset({"seed", "temperature", "top_p", "top_k"})
# What a comparison gives of each target, in this order: see `Distributions.against`.
COLUMNS = ("kl", "dp", "same_top", "nll_p", "nll_q")


class Distributions(Protocol):
    """A model's distributions over its vocabulary at some positions, whole or as a source of tiles."""

    @property
    def vocabulary_size(self) -> int:
        """Tokens of the vocabulary."""

    def against(self, candidate: Any, targets: NDArray[np.int64]) -> Floats:
        """Compare a candidate q with the reference p, which is `self`.

        Args:
            candidate: The candidate's distributions at the same positions, over a vocabulary of the same size.
            targets: Token ids, shape ``[positions]``.

        Returns:
            Shape ``[positions, 5]``: KL(p || q) in nats, q - p of the target, whether both have the same most likely
            token, and the NLL of the target under p and under q.

        Raises:
            OutOfMemory: Fewer positions may fit.
        """

    def stored(self) -> Any:
        """Return a tensor of shape ``[positions, ...]`` from which `restored` makes the distributions again."""

    def restored(self, parts: Sequence[Any]) -> Distributions:
        """Return the distributions of several `stored` tensors, one after the other."""


class Runner:
    """A loaded model. Only `score` and `tokenizer` are needed; a backend overrides the rest for what its model offers.

    Any exception but `OutOfMemory` and this package's errors becomes an error that names the model and its input.
    Before the first measurement the loop tries a causal model out, see `engine.trials`: it may not see later tokens,
    and has to give the same numbers twice, and probabilities that sum to 1 at most.

    Attributes:
        tokenizer: What the planning needs to know of the model's tokenizer.
        any_target: Whether `score` takes any token as a target, as the trials ask for; False where only the token that
            follows a position can be scored, which is all that measurements ask of a causal model.
        epsilon: Relative rounding of the numbers, as ``np.finfo(dtype).eps``; of bfloat16 unless said.
        is_tried: Whether no trial is left to make: the model passed them, or the engine makes its own.
    """

    tokenizer: TokenizerFacts
    any_target: bool = True
    epsilon: float = 2**-7
    is_tried: bool = False

    def measuring(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which a measurement runs, such as a library's evaluation mode."""
        return contextlib.nullcontext()

    def prepare(self, requests: Requests, *, compare: bool = False) -> Batching:
        """Look at all requests of a measurement before the first batch.

        Args:
            requests: The requests.
            compare: Whether `distributions` will be called in place of `score`.

        Raises:
            ModelError: The model cannot score them, for example since it sees the tokens that it has to predict.
        """
        return Batching()

    def score(self, requests: Sequence[Request]) -> Sequence[Floats]:
        """Return the NLLs in nats of each request's targets, an array of shape ``[targets]`` for each request.

        Real floating-point numbers: finite, 0 or more, and the same each time.

        A model that reads ``request.ids`` and whose ``log_probabilities`` have the shape ``[tokens, vocabulary]`` gives
        ``-log_probabilities[request.at, request.targets]``: `at` are positions, `targets` are token ids.

        Raises:
            OutOfMemory: Fewer requests may fit.
        """
        raise NotImplementedError

    def probe(self, rows: Sequence[Ints]) -> Sequence[Floats] | None:
        """Return numbers that show the distribution after each token, for trials; None has them score a few tokens.

        Args:
            rows: Token ids of several texts of one length, shape ``[tokens]`` each.

        Returns:
            For each row, shape ``[tokens, numbers]``, such as the logits of many tokens.

        Raises:
            OutOfMemory: Fewer rows may fit.
        """
        return None

    def begin(self, requests: Sequence[Request]) -> Callable[[], Sequence[Floats]]:
        """Begin to score requests, and return what waits for the NLLs that `score` returns.

        Of use to a device that works while the host prepares the next batch; any other engine only scores.

        Raises:
            OutOfMemory: Fewer requests may fit.
        """
        found = self.score(requests)
        return lambda: found

    def distributions(self, requests: Sequence[Request]) -> Distributions:
        """Return the distributions that predict the requests' targets, one request after the other.

        Raises:
            OutOfMemory: Fewer requests may fit.
        """
        raise NotImplementedError

    def prepare_writing(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Batching:
        """Look at all prompts of a measurement, the longest first, before the first batch.

        The tokens of a batch are those of its prompts and texts, times the number of beams.
        """
        return Batching()

    def generate(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Sequence[tuple[str, int]]:
        """Return for each prompt a text, without prompt and special tokens, and how many tokens were generated.

        At most ``settings.max_new_tokens``, and greedily unless `Model.honours` names what else is asked for. The loop
        cuts a text at ``settings.stop``; an engine that stops there itself saves time.

        Raises:
            OutOfMemory: Fewer prompts may fit.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Give the memory back."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model's entry in lmgate.yaml, and what helps a backend to describe the model.

    Attributes:
        name: The model's name, for messages.
        spec: The entry.
        path: Returns the absolute path of a path in the project.
        hub_id: Returns the repository and revision of a name on the hub; None where a path is written.
        digest: Returns the SHA-256 of a file; a file that has not changed is not read again.
        device: The device asked for; ``auto`` leaves it to the backend.
        dtype: The dtype asked for; ``auto`` is the model's own.
        offline: Whether nothing may be fetched.
        workers: Processes that share this machine's processors.
        worker: The number of this process among them, which chooses a GPU where there are several; None where there is
            one process.
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
    worker: int | None = None


@dataclass(frozen=True)
class Model:
    """A model that is described and not loaded.

    Attributes:
        name: The model's name.
        open: Loads the model.
        kind: How the model predicts a token.
        context: Tokens that it can read at once; None for no limit: then gates have to say ``max_length``, unless their
            protocol has a window of its own.
        content: Everything of the model that can change a number on any machine, as text: digests of its files, options
            of its entry. Two models of one engine with equal content and runtime are one model: the second is never
            measured. None where that is not known: then its measurements are made in each session and never kept.
        runtime: What else can change a number: the class of the device, versions of libraries.
        offers: What the engine can do with the model.
        honours: The settings of generation that it follows; a gate that asks for another is an error.
        device: Where the model will run.
        dtype: The dtype that it computes in, as far as that is known; another machine rounds accordingly.
        weight_bytes: About what its weights take in memory.
        batch_size: Requests per batch, or ``auto``; filled in from the entry.
        architecture: Its architecture, for messages.
        in_memory: Whether the model is the user's own object, which is not to be closed.
        not_kept: Why its measurements may not be kept; empty where they may.
        writing: Returns what else can change a text that it generates.
        files: Its files as they were when they were hashed; None to describe the model anew each time.
        changed: Returns the files that have changed since.
        tokenizer: Returns what `Runner.tokenizer` will be, without loading the model; None where that cannot be.
    """

    name: str
    open: Callable[[], Runner]
    kind: Kind = "causal"
    context: int | None = None
    content: Mapping[str, str] | None = None
    runtime: Mapping[str, str] = field(default_factory=dict)
    offers: frozenset[Offer] = frozenset({"score"})
    honours: frozenset[Setting] = frozenset()
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
    tokenizer: Callable[[], TokenizerFacts] | None = None

    @property
    def ingredients(self) -> dict[str, str]:
        """Everything that can change a number."""
        return {**(self.content or {}), **self.runtime}


class Backend(Protocol):
    """An engine.

    Attributes:
        name: As in ``backend: name`` in a model's entry.
        suffixes: Suffixes of paths that mean this engine where the entry has no ``backend:``, such as ``.gguf``.
        kinds: The kinds of models that it runs, for the table of the docs.
        offers: What it can do with some model at least, for the table of the docs; `Model.offers` decides.
    """

    name: str
    suffixes: tuple[str, ...] = ()
    kinds: frozenset[Kind] = frozenset({"causal"})
    offers: frozenset[Offer] = frozenset({"score"})

    def describe(self, entry: Entry) -> Model:
        """Describe a model without loading it.

        Raises:
            LmgateError: Its files, or its entry, are not what they should be.
        """
        ...
