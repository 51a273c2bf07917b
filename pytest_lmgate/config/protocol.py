"""Protocols: the named ways to cut a text into windows, as the user asked for them, checked and completed.

A `Protocol` is what a marker says; with the model's context it becomes a `Windowing`, which is all that
`data.windows` needs and all of the protocol that is in a measurement's address. What each name means is in
docs/protocols.md, with its source.
"""

from __future__ import annotations

__all__ = ["AVERAGES", "PROTOCOLS", "UNITS", "Protocol", "Windowing"]

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_lmgate.errors import ProtocolError, nearest

UNITS = ("token", "word", "byte", "char", "bits_per_byte")
AVERAGES = ("token", "window")


@dataclass(frozen=True)
class _Rule:
    """What a protocol's name fixes."""

    has_stride: bool = False
    whole_text: bool = True  # every token is read and scored, so units of the text itself are defined
    documents: bool = False  # rows are read one by one
    max_length: int | None = None  # where the convention names it
    average: str = "token"


PROTOCOLS = {
    "sliding": _Rule(has_stride=True),
    "disjoint": _Rule(),
    "bos-chunks": _Rule(whole_text=False),
    "gptq": _Rule(whole_text=False, max_length=2048, average="window"),
    "llama.cpp": _Rule(whole_text=False, max_length=512),
    "lm-eval": _Rule(documents=True),
    "document": _Rule(has_stride=True, documents=True),
}


@dataclass(frozen=True)
class Windowing:
    """A protocol with every number filled in.

    Attributes:
        protocol: Name; ``disjoint`` is ``sliding`` with stride equal to `max_length`, and is called so.
        max_length: L, tokens a window reads at most.
        stride: S, tokens between two windows' beginnings; equal to L where the protocol has no stride.
        add_bos_token: lm-eval only: whether the tokenizer's special tokens stay in the text; None is its own default.
    """

    protocol: str
    max_length: int
    stride: int
    add_bos_token: bool | None = False

    @property
    def by_document(self) -> bool:
        """Whether each row is read on its own."""
        return PROTOCOLS[self.protocol].documents

    @property
    def whole_text(self) -> bool:
        """Whether the protocol covers the text to its end."""
        return PROTOCOLS[self.protocol].whole_text

    @property
    def average(self) -> str:
        """The average the protocol's own figure is taken with."""
        return PROTOCOLS[self.protocol].average

    @property
    def signature(self) -> str:
        """The windows in one line, ``protocol:sliding|max_length:512|stride:256``."""
        parts = [f"protocol:{self.protocol}", f"max_length:{self.max_length}"]
        if PROTOCOLS[self.protocol].has_stride:
            parts.append(f"stride:{self.stride}")
        if self.protocol == "lm-eval":
            parts.append(f"add_bos_token:{str(self.add_bos_token).lower()}")
        return "|".join(parts)


@dataclass(frozen=True)
class Protocol:
    """A protocol as asked for in a marker, a fixture or lmgate.yaml.

    Attributes:
        name: One of `PROTOCOLS`.
        max_length: Window in tokens; None is the convention's own, else the model's context.
        stride: Step in tokens (``sliding`` and ``document``); None is half the window.
        unit: One of `UNITS`: what the perplexity is per.
        average: ``token`` pools all targets; ``window`` is the unweighted mean of the windows' means.
        allow_beyond_context: Permit a window longer than the model's context, for people who measure that.
        add_bos_token: See `Windowing`.

    Raises:
        ProtocolError: An unknown name, a number out of range, or an argument that the protocol does not have.
    """

    name: str = "sliding"
    max_length: int | None = None
    stride: int | None = None
    unit: str = "token"
    average: str | None = None
    allow_beyond_context: bool = False
    add_bos_token: bool | None = False

    def __post_init__(self) -> None:
        _one_of("protocol", self.name, PROTOCOLS)
        _one_of("unit", self.unit, UNITS)
        if self.average is not None:
            _one_of("average", self.average, AVERAGES)
        _whole_number("max_length", self.max_length, at_least=2)
        _whole_number("stride", self.stride, at_least=1)
        if not isinstance(self.allow_beyond_context, bool):
            raise ProtocolError(f"allow_beyond_context: expected true or false, got {self.allow_beyond_context!r}")
        if self.add_bos_token is not None and not isinstance(self.add_bos_token, bool):
            raise ProtocolError(f"add_bos_token: expected true, false or None, got {self.add_bos_token!r}")
        rule = PROTOCOLS[self.name]
        if self.stride is not None and not rule.has_stride:
            raise ProtocolError(f"stride: protocol {self.name!r} has none; remove it, or use protocol='sliding'")
        if self.add_bos_token is not False and self.name != "lm-eval":
            raise ProtocolError(f"add_bos_token: only protocol 'lm-eval' has it, not {self.name!r}")
        if self.average not in (None, rule.average) and self.name not in ("sliding", "disjoint", "document"):
            raise ProtocolError(f"average: protocol {self.name!r} is defined with average={rule.average!r} only")
        if self.unit != "token":
            if not rule.whole_text:
                raise ProtocolError(
                    f"unit: {self.unit!r} counts the whole text, of which protocol {self.name!r} leaves part unscored; "
                    "use unit='token', or protocol 'sliding', 'disjoint', 'document' or 'lm-eval'"
                )
            if self.average == "window":
                raise ProtocolError(f"unit: average='window' is defined per token only, not per {self.unit!r}")
        if self.name == "llama.cpp" and self.max_length == 2:
            raise ProtocolError("max_length: protocol 'llama.cpp' scores the later half of 3 tokens or more, got 2")
        if self.max_length is not None and self.stride is not None and self.stride > self.max_length:
            raise ProtocolError(
                f"stride: at most max_length={self.max_length} (else tokens are skipped), got {self.stride}"
            )

    def windowing(self, context: int | None, *, model: str) -> Windowing:
        """Fill in what the model decides.

        Args:
            context: Tokens the model can read, or None where it has no limit of its own (Mamba, RWKV, ALiBi).
            model: The model's name, for messages.

        Raises:
            ProtocolError: No length is known, the window is longer than the context, or the stride than the window.
        """
        rule = PROTOCOLS[self.name]
        length = self.max_length or rule.max_length or context
        if length is None:
            raise ProtocolError(
                f"max_length: the model {model!r} names no context length of its own; say max_length=1024, for example"
            )
        if context is not None and length > context and not self.allow_beyond_context:
            default = "" if self.max_length else f" (the default of protocol {self.name!r})"
            raise ProtocolError(
                f"max_length: {length}{default} is longer than the context of the model {model!r}, {context} tokens; "
                f"say max_length={context} or less, or allow_beyond_context=True to measure it all the same"
            )
        stride = self.stride or (max(1, length // 2) if rule.has_stride else length)
        if stride > length:
            raise ProtocolError(f"stride: at most max_length={length} (else tokens are skipped), got {stride}")
        # A stride as long as the window is what `disjoint` means: one address for both.
        name = "disjoint" if self.name == "sliding" and stride == length else self.name
        return Windowing(name, length, stride, self.add_bos_token)


def _one_of(key: str, value: object, valid: Iterable[str]) -> None:
    names = list(valid)
    if value not in names:
        raise ProtocolError(f"{key}: expected one of {', '.join(names)}; got {value!r}{nearest(str(value), names)}")


def _whole_number(key: str, value: object, *, at_least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ProtocolError(f"{key}: expected a whole number of tokens, {at_least} or more; got {value!r}")
