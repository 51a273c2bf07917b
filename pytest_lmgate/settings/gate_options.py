"""What to measure and how, as records: a protocol of windows, how texts are generated, what else a metric takes.

Their fields are the arguments of markers and fixtures, and of the gates of lmgate.yaml: types and constraints are what
`settings.decoding` refuses others by, and the docstrings what help and the JSON schema say.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, structs

from pytest_lmgate.errors import ConfigError, ProtocolError

SignatureField = tuple[str, str | None]
_VERSIONS = ("version", "lmgate")
# msgspec evaluates a record's annotations each time, and markers and gates share records: 2 ms of a session, not 12.
fields_of = functools.cache(structs.fields)


class Signature(str):
    """Everything needed to reproduce a number: ``label|key:value|...``.

    It is a real ``str``. Code reads its fields, never the text.
    """

    fields: tuple[SignatureField, ...]  # keys and values in order; a label has the value None

    def __new__(cls, fields: Iterable[SignatureField]) -> Signature:
        kept = tuple(fields)
        self = super().__new__(cls, "|".join(key if value is None else f"{key}:{value}" for key, value in kept))
        self.fields = kept
        return self

    def __getnewargs__(self) -> tuple[tuple[SignatureField, ...]]:  # type: ignore[override]  # str's are its text
        return (self.fields,)

    @classmethod
    def parse(cls, text: str) -> Signature:
        """Read a signature from text, of sacrebleu or a user's metric."""
        parts = (each.partition(":") for each in text.split("|"))
        return cls((key, value if colon else None) for key, colon, value in parts)

    def plus(self, *fields: SignatureField) -> Signature:
        return Signature((*self.fields, *fields))

    @property
    def compared(self) -> str:
        """What two comparable numbers must share: all fields except versions."""
        return str(Signature((key, value) for key, value in self.fields if value is None or key not in _VERSIONS))


@dataclass(frozen=True, kw_only=True)
class ProtocolRules:
    """Which arguments a protocol takes; how it reads and cuts a text is in `windows.protocols`."""

    max_length: int | None = None  # the protocol's own window, if it names one
    least_length: int = 2  # the shortest window that scores a token
    has_stride: bool = False  # whether windows may overlap by a stride that the user chooses
    without_overlap: str = ""  # name of the protocol that this one is where the stride equals the window
    has_add_bos_token: bool = False  # whether the option `add_bos_token` exists
    by_document: bool = False  # whether rows are read one by one
    whole_text: bool = False  # whether every token of a text is scored
    averages: tuple[str, ...] = ("token",)  # the averages that are defined; the first is the protocol's own
    iid: bool = False  # whether its program prints the standard error that takes tokens as independent


ProtocolName = Literal["sliding", "disjoint", "bos-chunks", "gptq", "llama.cpp", "lm-eval", "document"]
DEFAULT_PROTOCOL: ProtocolName = "sliding"
Average = Literal["token", "window"]
Unit = Literal["token", "word", "byte", "char", "bits_per_byte"]
AVERAGES: tuple[Average, ...] = get_args(Average)
PROTOCOL_RULES = {
    "sliding": ProtocolRules(has_stride=True, without_overlap="disjoint", averages=AVERAGES),
    "disjoint": ProtocolRules(averages=AVERAGES),
    "bos-chunks": ProtocolRules(),
    "gptq": ProtocolRules(max_length=2048, averages=("window",)),
    "llama.cpp": ProtocolRules(max_length=512, least_length=3, iid=True),
    "lm-eval": ProtocolRules(has_add_bos_token=True, by_document=True, whole_text=True),
    "document": ProtocolRules(has_stride=True, by_document=True, averages=AVERAGES),
}

Positive = Annotated[int, Meta(ge=1)]
MaxLength = Annotated[int, Meta(ge=2)]


class WindowProtocol(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A protocol as a marker, a fixture or lmgate.yaml asks for it; with a model's context it becomes a `Windowing`.

    Attributes:
        name: Which windows of a text are read and which of their tokens are scored: a name of docs/protocols.md.
        max_length: Window in tokens; None is the protocol's own, else the model's context.
        stride: Step in tokens, if the protocol has one; None is half the window.
        unit: What the perplexity is per: ``token``, ``word``, ``byte``, ``char`` or ``bits_per_byte``.
        average: ``token`` pools all targets; ``window`` is the unweighted mean of the windows' means; None is the
            protocol's own.
        allow_beyond_context: Permit a window longer than the model's context.
        add_bos_token: For ``lm-eval``, the special tokens of each row: False for none, True for a BOS, None for those
            that the tokenizer adds.
    """

    name: ProtocolName = msgspec.field(default=DEFAULT_PROTOCOL, name="protocol")
    max_length: MaxLength | None = None
    stride: Positive | None = None
    unit: Unit = "token"
    average: Average | None = None
    allow_beyond_context: bool = False
    add_bos_token: bool | None = False

    def __post_init__(self) -> None:
        rules = self.rules
        if self.stride is not None and not rules.has_stride:
            raise ProtocolError.of("stride", f"protocol {self.name!r} has none; remove it, or use protocol='sliding'")
        if self.add_bos_token is not False and not rules.has_add_bos_token:
            having = [name for name, each in PROTOCOL_RULES.items() if each.has_add_bos_token]
            raise ProtocolError.of("add_bos_token", f"only protocol {_either(having)} has it, not {self.name!r}")
        if self.average is not None and self.average not in rules.averages:
            raise ProtocolError.of(
                "average", f"protocol {self.name!r} is defined with average={rules.averages[0]!r} only"
            )
        if self.unit != "token" and (self.average or rules.averages[0]) == "window":
            raise ProtocolError.of("unit", f"average='window' is defined per token only, not per {self.unit!r}")
        if self.max_length is not None and self.max_length < rules.least_length:
            raise ProtocolError.of(
                "max_length",
                f"protocol {self.name!r} scores nothing in fewer than {rules.least_length} tokens, "
                f"got {self.max_length}",
            )
        if self.max_length is not None and self.stride is not None:
            _check_stride(self.stride, self.max_length)

    @property
    def rules(self) -> ProtocolRules:
        return PROTOCOL_RULES[self.name]

    def windowing(self, context: int | None, *, model: str) -> Windowing:
        """Fill in what the model decides; its context is None without a limit (Mamba, RWKV, ALiBi)."""
        length = self.max_length or self.rules.max_length or context
        if length is None:
            raise ProtocolError.of(
                "max_length", f"the model {model!r} has no context length; set max_length, for example max_length=1024"
            )
        if not self.allow_beyond_context:
            default = "" if self.max_length else f" (the default of protocol {self.name!r})"
            _check_context(length, context, model, default, ", or allow_beyond_context=True to measure it anyway")
        stride = self.stride or (max(1, length // 2) if self.rules.has_stride else length)
        _check_stride(stride, length)
        # Sliding windows without overlap are another protocol's windows: one address for both.
        name = self.rules.without_overlap if self.rules.without_overlap and stride == length else self.name
        return Windowing(name, length, stride, self.add_bos_token)


def _check_stride(stride: int, length: int) -> None:
    if stride > length:
        raise ProtocolError.of("stride", f"at most max_length={length} (else tokens are skipped), got {stride}")


def _either(names: list[str]) -> str:
    *most, last = map(repr, names)
    return f"{', '.join(most)} or {last}" if most else last


@dataclass(frozen=True)
class Windowing:
    """A protocol with every number filled in, which is all of it that a measurement's address holds."""

    protocol: str  # name; ``disjoint`` is ``sliding`` with stride equal to `max_length`, and is called so
    max_length: int  # L, tokens a window reads at most
    stride: int  # S, tokens between two windows' beginnings; equal to L where the protocol has no stride
    # where the protocol has the option: which special tokens a text gets; None is the tokenizer's own default
    add_bos_token: bool | None = False

    @property
    def rules(self) -> ProtocolRules:
        return PROTOCOL_RULES[self.protocol]

    @property
    def average(self) -> str:
        """The average the protocol's own figure is taken with."""
        return self.rules.averages[0]

    @property
    def signature(self) -> Signature:
        """The windows in one line, ``protocol:sliding|max_length:512|stride:256``."""
        found = Signature([("protocol", self.protocol), ("max_length", str(self.max_length))])
        if self.rules.has_stride:
            found = found.plus(("stride", str(self.stride)))
        if self.rules.has_add_bos_token:
            found = found.plus(("add_bos_token", str(self.add_bos_token).lower()))
        return found


_STOP = {"words": "a non-empty string, or a list of them"}


class GenerationRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a gate, or a dataset's entry, says of decoding; what neither says has the default of `GenerationSettings`.

    Attributes:
        max_new_tokens: Maximum number of tokens of a text; None is the dataset's, else 128.
        num_beams: 1 is greedy (or sampling), more is beam search; None is the dataset's, else 1.
        stop: The text ends before the first of these strings; None is the dataset's, else none.
        seed: Makes sampling repeatable; required for sampling, and only allowed there.
        temperature: Sampling temperature; with `seed` only.
        top_p: Draw from the most likely tokens that have this share of the probability; with `seed` only.
        top_k: Draw from this many of the most likely tokens; with `seed` only.
        truncate: ``left`` cuts the beginning of a prompt that does not fit; None makes that an error.
        repeats: Texts of each row, drawn independently; for sampling only. None is the dataset's, else 1.
    """

    max_new_tokens: Positive | None = None
    num_beams: Positive | None = None
    stop: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...] | None, Meta(extra=_STOP)] = None
    seed: Annotated[int, Meta(ge=0)] | None = None
    temperature: Annotated[float, Meta(gt=0)] | Annotated[int, Meta(gt=0)] | None = None  # 1 is not written 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] | Annotated[int, Meta(gt=0, le=1)] | None = None
    top_k: Positive | None = None
    truncate: Literal["left"] | None = None
    repeats: Positive | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The settings that were set explicitly."""
        values = {name: getattr(self, name) for name in GenerationRequest.__struct_fields__}
        return {name: value for name, value in values.items() if value is not None}

    def settings(self, defaults: GenerationRequest | None = None) -> GenerationSettings:
        """Return the settings; those that are not given come from `defaults`."""
        return GenerationSettings(**{**(defaults.given if defaults is not None else {}), **self.given})


class GenerationSettings(GenerationRequest, frozen=True, forbid_unknown_fields=True):
    """Everything about decoding that can change a text: greedy by default; sampling needs a seed."""

    max_new_tokens: Positive = 128
    num_beams: Positive = 1
    stop: tuple[str, ...] = ()
    repeats: Positive = 1

    def __post_init__(self) -> None:
        sampling = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        if given := [key for key, value in sampling.items() if value is not None]:
            if self.seed is None:
                raise ConfigError.of(", ".join(given), "sampling needs a seed, or no two runs agree; use seed=1234")
            if self.num_beams > 1:
                raise ConfigError.of("num_beams", f"beam search does not sample; remove {', '.join(given)} and seed")
        elif self.seed is not None:
            raise ConfigError.of("seed", "only sampling needs one; add temperature, top_p or top_k, or remove it")
        if self.repeats > 1 and not self.is_sampling:
            raise ConfigError.of("repeats", "without sampling all texts are the same; add temperature and seed")

    @property
    def is_sampling(self) -> bool:
        return self.seed is not None

    @property
    def signature(self) -> Signature:
        """The settings that are set, in one line."""
        names = ("max_new_tokens", "num_beams", "seed", "temperature", "top_p", "top_k", "truncate")
        given = {name: str(getattr(self, name)) for name in names if getattr(self, name) is not None}
        given |= {"repeats": str(self.repeats)} if self.repeats > 1 else {}
        return Signature([*given.items(), *([("stop", repr(list(self.stop)))] if self.stop else [])])


class TextRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A metric of generated texts, or of given predictions with their references.

    Attributes:
        metric: Name of the metric.
        options: Metric options that were given.
        generation: How a model writes the texts, as far as the gate says it.
        predictions: Texts to score instead of a model's, one per row.
        references: References of `predictions`, a list of texts per row.
    """

    metric: str
    options: tuple[tuple[str, Any], ...]
    generation: GenerationRequest = GenerationRequest()
    predictions: Sequence[str] | None = None
    references: Sequence[Sequence[str]] | None = None


class ChoiceRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Multiple choice, or a target, by likelihood after a question.

    Attributes:
        variant: The choice with the highest log-likelihood is the model's: of the whole (``acc``), per character
            (``acc_norm``) or per byte (``acc_bytes``).
        max_length: Maximum number of tokens; None is the model's context.
        truncate: ``left`` cuts the beginning of a question that does not fit; None is the dataset's, else an error.
    """

    variant: Literal["acc", "acc_norm", "acc_bytes"] = "acc"
    max_length: MaxLength | None = None
    truncate: Literal["left"] | None = None


class MaskedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Pseudo-perplexity of a masked model, one mask at a time.

    Attributes:
        max_length: Maximum number of tokens with special tokens; None is the model's context. Longer texts are read in
            chunks.
    """

    max_length: MaxLength | None = None


def tokens_at_once(asked: ChoiceRequest | MaskedRequest, context: int | None, model: str) -> int | None:
    """Return how many tokens a model is to read at once, by default its context; `ProtocolError` for more than that."""
    length = asked.max_length or context
    _check_context(length, context, model)
    return length


def _check_context(length: int | None, context: int | None, model: str, default: str = "", otherwise: str = "") -> None:
    if length is not None and context is not None and length > context:
        raise ProtocolError.of(
            "max_length",
            f"{length}{default} is longer than the context of the model {model!r}, {context} tokens; use "
            f"max_length={context} or less{otherwise}",
        )


class DivergenceRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A model compared with its reference, given as models are, on the same tokens.

    Attributes:
        statistic: Statistic of the tokens' divergences: ``mean``, ``median``, ``p90``, ``p95``, ``p99``, ``p99.9`` or
            ``max``.
        estimator: ``exact`` compares whole distributions on the dataset's text; ``sampled`` compares the probabilities
            of tokens that the reference writes, which every engine gives.
        max_new_tokens: Tokens of each text that the reference writes, at most; for ``sampled`` only. None is 128.
    """

    reference: Any
    protocol: WindowProtocol = WindowProtocol()
    statistic: Literal["mean", "median", "p90", "p95", "p99", "p99.9", "max"] = "mean"
    estimator: Literal["exact", "sampled"] = "exact"
    max_new_tokens: Positive | None = None

    def __post_init__(self) -> None:
        if self.estimator == "exact":
            if self.max_new_tokens is not None:
                raise ConfigError.of("max_new_tokens", "only estimator='sampled' writes texts; remove it")
        elif self.statistic != "mean":
            raise ConfigError.of(
                "statistic", f"estimator='sampled' gives the mean only, not {self.statistic!r}; use estimator='exact'"
            )
        elif self.protocol != WindowProtocol():
            raise ConfigError.of(
                "estimator", "'sampled' has no windows, so it takes no protocol: remove protocol, stride and max_length"
            )


class SelfDivergenceRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A model that reads what it wrote.

    Attributes:
        max_new_tokens: Tokens of each text that the model writes, at most.
    """

    max_new_tokens: Positive = 128
