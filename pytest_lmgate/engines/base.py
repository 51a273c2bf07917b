"""What an engine is: a `Backend` and a `Runner`, which together get every metric that they can serve.

`Backend.describe` makes a `Model` of an entry in lmgate.yaml without loading it. `Model.open` loads it and returns a
`Runner`, which has a tokenizer and scores requests. Everything else is the same for all engines: windows, batches,
halving where memory runs out, progress, resuming, the cache, metrics and verdicts. A whole engine, to which each of 64
tokens is equally likely::

    import numpy as np
    from pytest_lmgate.engines.base import Backend, Model, Runner
    from pytest_lmgate.windows.tokens import TokenizerFacts

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

import contextlib
import enum
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.errors import ConfigError, EngineError, ModelError, nearest
from pytest_lmgate.identity import Snapshot
from pytest_lmgate.settings.entries import ModelSpec
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.windows.requests import Request, Requests
from pytest_lmgate.windows.tokens import PromptIds, TokenizerFacts

Kind = Literal["causal", "masked", "encoder-decoder"]
# With "greedy", `Runner.score` heeds `Request.greedy`.
Offer = Literal["score", "generate", "compare", "greedy", "sample"]
# Settings of generation other than greedy: see `GenerationSettings`.
Setting = Literal["num_beams", "seed", "temperature", "top_p", "top_k"]
SAMPLING: frozenset[Setting] = frozenset({"seed", "temperature", "top_p", "top_k"})
# A text, its tokens, and whether it ended by itself: see `Runner.generate`.
Written = tuple[str, int] | tuple[str, int, bool]
# The token ids that a model drew, and the NLL in nats of each: see `Runner.sample`.
Drawn = tuple[Sequence[int], Sequence[float]]
# What a comparison gives of each target, in this order: see `Distributions.against`.
COLUMNS = ("kl", "dp", "same_top", "nll_p", "nll_q")


class OutOfMemory(Exception):
    """The device `where` has no memory for a batch, which is then halved."""

    def __init__(self, where: str, details: str = "") -> None:
        super().__init__(where, details)
        self.where, self.details = where, details


class BatchPolicy(enum.Enum):
    """Which requests may share a batch with a request without changing its numbers."""

    ANY_LENGTH = "rows of any length"
    SAME_LENGTH = "rows of its own length"
    SINGLE = "no other row"

    @classmethod
    def strictest(cls, policies: Iterable[BatchPolicy]) -> BatchPolicy:
        """Return the policy that suits all of the models."""
        return max(policies, key=list(cls).index)


@dataclass(frozen=True)
class Batching:
    """How a runner wants its requests.

    Attributes:
        tokens: Tokens that a batch may hold, padding included.
        policy: Which requests may share a batch.
        remark: A sentence about that for the session's summary; empty for none.
        is_double: Whether the model computes in float64; then its numbers are kept in float64 too.
        max_concurrency: Batches that it takes at the same time, each from a thread of its own.
        dispatch_async: Whether to begin a batch before the results of the last one are there; see `Runner.begin`.
        dedup_reads: Whether requests with identical inputs may be merged.
        order: The order in which the requests are wanted, shape ``[requests]``; None for the longest first.
    """

    tokens: int = 16384
    policy: BatchPolicy = BatchPolicy.ANY_LENGTH
    remark: str = ""
    is_double: bool = False
    max_concurrency: int = 1
    dispatch_async: bool = False
    dedup_reads: bool = False
    order: Ints | None = None


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
        """

    def stored(self) -> Any:
        """Return a tensor of shape ``[positions, ...]`` from which `restored` makes the distributions again."""

    def restored(self, parts: Sequence[Any]) -> Distributions:
        """Return the distributions of several `stored` tensors, one after the other."""


class Runner:
    """A loaded model. Only `score` and `tokenizer` are required; override the rest for what the model offers.

    A method that reads or writes raises `OutOfMemory` if fewer requests may fit. Any other exception that is not this
    package's becomes an error that names the model and its input. Before the first measurement, trials check a causal
    model (`measure.trials`): it may not see later tokens, and must give the same numbers twice and probabilities that
    sum to 1 at most.

    Attributes:
        tokenizer: What the planning needs to know of the model's tokenizer.
        any_target: Whether `score` takes any token as a target, as the trials need; False if only the token that
            follows a position can be scored, which is enough for measurements of a causal model.
        epsilon: Relative rounding of the numbers, as ``np.finfo(dtype).eps``; by default that of bfloat16.
        is_tried: Whether the model has passed the trials, or the engine makes its own.
        load_warnings: What libraries warned of while the model was loaded; filled in by whoever opens it.
        replaced: What runs in the place of its library's code, in words; if anything does, no measurement is kept.
        proofs: What trials have shown of the model, by name: plain values that hold for its content and runtime. They
            are kept in the cache, and a later session does not try again what they say. An engine may add its own.
        rereads: Whether two long texts are read before and after each measurement, and must have the same numbers each
            time. False for an engine that keeps nothing of what it reads, so that it cannot answer from it (prefix
            caches do).
    """

    tokenizer: TokenizerFacts
    any_target: bool = True
    epsilon: float = 2**-7
    is_tried: bool = False
    load_warnings: Sequence[str] = ()
    replaced: Sequence[str] = ()
    proofs: Mapping[str, Any] = MappingProxyType({})
    rereads: bool = True

    def measuring(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which a measurement runs, such as a library's evaluation mode."""
        return contextlib.nullcontext()

    def prepare(self, requests: Requests, *, compare: bool = False) -> Batching:
        """Look at all requests of a measurement before the first batch.

        With `compare`, `distributions` will be called instead of `score`.

        Raises:
            ModelError: The model cannot score them.
        """
        return Batching()

    def score(self, requests: Sequence[Request]) -> Sequence[Floats]:
        """Return the NLLs in nats of each request's targets, an array of shape ``[targets]`` for each request.

        Real floating-point numbers: finite, 0 or more, and the same each time.

        A model that reads ``request.ids`` and whose ``log_probabilities`` have the shape ``[tokens, vocabulary]`` gives
        ``-log_probabilities[request.at, request.targets]``: `at` are positions, `targets` are token ids.

        An engine that offers ``greedy`` returns ``[targets, 2]`` for a request with ``request.greedy``: each NLL, and
        1 if the target is the most likely token, else 0. Of equally likely tokens it is the lowest id.
        """
        raise NotImplementedError

    def probe(self, rows: Sequence[Ints]) -> Sequence[Floats] | None:
        """Return numbers that show the distribution after each token, for trials; None scores a few tokens instead.

        The rows are token ids of one length. The numbers, such as the logits of many tokens, have the shape
        ``[tokens, numbers]`` for each row.
        """
        return None

    def begin(self, requests: Sequence[Request]) -> Callable[[], Sequence[Floats]]:
        """Begin to score requests, and return a function that waits for the NLLs.

        Useful for a device that works while the host prepares the next batch; other engines only need `score`.
        """
        nll = self.score(requests)
        return lambda: nll

    def distributions(self, requests: Sequence[Request]) -> Distributions:
        """Return the distributions that predict the requests' targets, one request after the other."""
        raise NotImplementedError

    def prepare_writing(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Batching:
        """Look at all prompts of a measurement, the longest first, before the first batch.

        The tokens of a batch are those of its prompts and texts, times the number of beams.
        """
        return Batching()

    def generate(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Sequence[Written]:
        """Return for each prompt a text, without prompt and special tokens, and the number of generated tokens.

        A third value says whether the text ended by itself, as with an end token; without it, it is unknown whether a
        text of ``settings.max_new_tokens`` tokens was cut there.

        At most ``settings.max_new_tokens``, and greedily unless `Model.honours` names the other settings. The loop
        cuts a text at ``settings.stop``; an engine that stops there itself saves time.
        """
        raise NotImplementedError

    def sample(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Sequence[Drawn]:
        """Return for each prompt the token ids that the model draws, with the end token, and the NLL of each in nats.

        The settings are a number of tokens, a seed and temperature 1: every token is drawn from the whole distribution,
        which nothing changes, and its NLL is the one that the model had as it wrote. `prepare_writing` comes first.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Give the memory back."""


_OPTION_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", dict: "a mapping"}


class LoadOption(NamedTuple):
    """What an option in ``load:`` may be: its type, for a number the least one, for a text the known ones."""

    kind: type
    least: int | None = None
    texts: tuple[str, ...] = ()


_LONG = 10.0  # seconds of hashing that are worth a sentence
_SHA256 = re.compile(r"[0-9a-f]{64}")


def discard_note(_: str) -> None:
    """Hear a note where nobody does; unlike a lambda, it travels to workers of a cluster."""


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """A model's entry in lmgate.yaml, and what helps a backend to describe the model.

    Attributes:
        name: The model's name, for messages.
        spec: The entry.
        path: Returns the absolute path of a path in the project.
        hub_id: Returns the repository and revision of a name on the hub; None where a path is written.
        digest: Returns the SHA-256 of a file; a file that has not changed is not read again.
        device: The wanted device; ``auto`` leaves it to the backend.
        dtype: The wanted dtype; ``auto`` is the model's own.
        offline: Whether nothing may be fetched.
        looks: Whether the model is only looked at, so that no server is asked.
        workers: Processes that share this machine's processors.
        worker: The number of this process among them, which chooses a GPU if there are several; None if there is
            one process.
        run: Id of the run, which all its processes share.
        logs: Folder for the logs of programs that an engine starts, outside of the cache; None is the system's for
            temporary files.
        note: Called with a sentence that is worth saying at once.
    """

    name: str
    spec: ModelSpec
    path: Callable[[str], Path]
    hub_id: Callable[[str], tuple[str, str | None] | None]
    digest: Callable[[Path], str]
    device: str = "auto"
    dtype: str = "auto"
    offline: bool = False
    looks: bool = False
    workers: int = 1
    worker: int | None = None
    run: str = ""
    logs: Path | None = None
    note: Callable[[str], None] = discard_note

    @property
    def threads(self) -> int:
        """How many threads an engine computes with: OMP_NUM_THREADS, else this worker's share of the processors."""
        wanted = os.environ.get("OMP_NUM_THREADS", "")
        if wanted.isdecimal() and int(wanted) > 0:
            return int(wanted)
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, processors // self.workers)

    def refuse_keys(self, engine: str, instead: Mapping[str, str]) -> None:
        """Refuse keys that mean nothing to an engine by a `ConfigError`; `instead` says what to do instead of each."""
        for key, advice in instead.items():
            if getattr(self.spec, key) not in (None, False, "auto"):
                raise ConfigError(f"models.{self.name}.{key}: the engine {engine} does not support it: {advice}")

    def load_options(self, engine: str, known: Mapping[str, LoadOption]) -> Mapping[str, Any]:
        """Return the options in ``load:``; a `ConfigError` if one is not among the `known` ones, or does not fit."""
        where = f"models.{self.name}.load"
        for key, value in self.spec.load.items():
            if key not in known:
                names = ", ".join(known) or "none"
                raise ConfigError(f"{where}: {engine} has no option {key!r}{nearest(key, known)}; it has {names}")
            kind, least, texts = known[key]
            fits = isinstance(value, (int, float) if kind is float else kind)
            if not fits or (isinstance(value, bool) and kind is not bool) or (least is not None and value < least):
                words = _OPTION_WORDS[kind] + (f" from {least}" if least is not None else "")
                raise ConfigError(f"{where}.{key}: expected {words}, got {value!r}")
            if texts and value not in texts:
                hint = nearest(value, texts)
                raise ConfigError(f"{where}.{key}: expected one of {', '.join(texts)}; got {value!r}{hint}")
        return self.spec.load

    def hash_files(self, files: Mapping[str, Path], folders: Iterable[Path] = ()) -> tuple[Snapshot, dict[str, str]]:
        """Return the status of files, and of folders to which a file may be added, and the digest of each file.

        A `ModelError` if a file cannot be read.
        """
        snapshot, started = Snapshot.of([*files.values(), *folders]), time.monotonic()
        with ThreadPoolExecutor(self.threads) as pool:  # hashing lets other threads run
            digests = dict(zip(files, pool.map(self._digest, files.values()), strict=True))
        if (seconds := time.monotonic() - started) > _LONG:
            gigabytes = sum(path.stat().st_size for path in files.values()) / 1e9
            self.note(
                f"{self.name}: read {gigabytes:,.1f} GB in {seconds:.0f} s for its address, once until they change"
            )
        return snapshot, digests

    def _digest(self, path: Path) -> str:
        try:
            blob = path.resolve()
            if self.spec.trust == "hub" and blob.parent.name == "blobs" and _SHA256.fullmatch(blob.name):
                return f"hub:{blob.name}"
            return self.digest(path)
        except OSError as error:
            raise ModelError(f"model {self.name!r}: {path}: cannot be read: {error.strerror}") from error


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
        named: Returns the engine's settings that signatures name, from whether it generates text. They are part of
            `content` or follow from it, and may differ between the two sides of a comparison.
        files: Its files as they were when they were hashed; None to describe the model again each time.
        changed: Returns the files that have changed since.
        tokenizer: Returns what `Runner.tokenizer` will be, without loading the model; None where that cannot be.
        chat_template_kwargs: Variables of its chat template; filled in from the entry.
        process: Identifies a program of its own in which the model runs. Code of the user's cannot change it, so that
            it stays open between tests, until the session ends.
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
    named: Callable[[bool], Mapping[str, str]] = lambda generates: {}
    files: Snapshot | None = None
    changed: Callable[[], Sequence[str]] = tuple
    tokenizer: Callable[[], TokenizerFacts] | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    process: str = ""

    @property
    def ingredients(self) -> dict[str, str]:
        """Everything that can change a number."""
        return {**(self.content or {}), **self.runtime}


class Backend(Protocol):
    """An engine.

    Attributes:
        name: As in ``backend: name`` in a model's entry.
        suffixes: Suffixes of paths that mean this engine where the entry has no ``backend:``, such as ``.gguf``; for
            an engine of this package they are in `engines.registry`, which is read without importing the engine.
        kinds: The kinds of models that it runs, for the table of the docs.
        offers: What it can do with some model at least, for the table of the docs; `Model.offers` decides.
    """

    name: str
    suffixes: tuple[str, ...] = ()
    kinds: frozenset[Kind] = frozenset({"causal"})
    offers: frozenset[Offer] = frozenset({"score"})

    def describe(self, entry: ModelEntry) -> Model:
        """Describe a model without loading it.

        Raises:
            LmgateError: Its files, or its entry, are not what they should be.
        """
        ...


def check_ids(highest: int, size: int, model: str) -> None:
    """Refuse token ids that the model has no entry for: a `ModelError` if the highest is not below `size`."""
    if highest >= size:
        raise ModelError(
            f"model {model!r}: its tokenizer gives token id {highest}, but its vocabulary has {size} entries; the "
            "tokenizer belongs to another model, or tokens were added without resizing the embeddings"
        )


def checked(found: Any, model: str) -> list[Floats]:
    """Return the NLLs of some requests as float64; an engine may fill the same array again for the next requests."""
    if isinstance(found, str | bytes | Mapping) or not isinstance(found, Iterable):
        raise EngineError(f"model {model!r}: expected a list of arrays of NLLs, got {type(found).__name__}")
    results = []
    for values in found:
        array = np.asarray(values)
        if array.dtype.kind != "f":
            raise EngineError(
                f"model {model!r}: expected real floating-point numbers, the NLLs of a request's targets in nats, got "
                f"{array.dtype} {array.ravel()[:1].tolist()!r:.60}"
            )
        results.append(np.array(array, np.float64))
    return results
