"""`Protocol`: how a text is to be read, as the user asked for it, checked and completed.

With the model's context it becomes a `Windowing`. What a protocol's name stands for is in
`pytest_lmgate.data.protocols`.
"""

from __future__ import annotations

__all__ = ["AVERAGES", "UNITS", "Protocol", "one_of", "whole_number"]

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_lmgate.data.protocols.base import Convention
from pytest_lmgate.data.protocols.table import PROTOCOLS
from pytest_lmgate.data.protocols.windowing import Windowing
from pytest_lmgate.errors import ProtocolError, nearest

UNITS = ("token", "word", "byte", "char", "bits_per_byte")
AVERAGES = ("token", "window")


@dataclass(frozen=True)
class Protocol:
    """A protocol as asked for in a marker, a fixture or lmgate.yaml.

    Attributes:
        name: Which windows of a text are read and which of their tokens are scored: a name of docs/protocols.md.
        max_length: Window in tokens; None is the protocol's own, else the model's context.
        stride: Step in tokens, where the protocol has one; None is half the window.
        unit: What the perplexity is per: ``token``, ``word``, ``byte``, ``char`` or ``bits_per_byte``.
        average: ``token`` pools all targets; ``window`` is the unweighted mean of the windows' means; None is the
            protocol's own.
        allow_beyond_context: Permit a window longer than the model's context, for people who measure that.
        add_bos_token: Of ``lm-eval``, the special tokens of each row: False for none, True for a BOS, None for those
            that the tokenizer adds.

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
        one_of("protocol", self.name, PROTOCOLS)
        one_of("unit", self.unit, UNITS)
        if self.average is not None:
            one_of("average", self.average, AVERAGES)
        whole_number("max_length", self.max_length, at_least=2)
        whole_number("stride", self.stride, at_least=1)
        if not isinstance(self.allow_beyond_context, bool):
            raise ProtocolError.of("allow_beyond_context", f"expected true or false, got {self.allow_beyond_context!r}")
        if self.add_bos_token is not None and not isinstance(self.add_bos_token, bool):
            raise ProtocolError.of("add_bos_token", f"expected true, false or None, got {self.add_bos_token!r}")
        convention = self.convention
        if self.stride is not None and not convention.has_stride:
            raise ProtocolError.of("stride", f"protocol {self.name!r} has none; remove it, or use protocol='sliding'")
        if self.add_bos_token is not False and not convention.has_add_bos_token:
            having = [each.name for each in PROTOCOLS.values() if each.has_add_bos_token]
            raise ProtocolError.of("add_bos_token", f"only protocol {_either(having)} has it, not {self.name!r}")
        if self.average is not None and self.average not in convention.averages:
            raise ProtocolError.of(
                "average", f"protocol {self.name!r} is defined with average={convention.averages[0]!r} only"
            )
        if self.unit != "token":
            if not convention.whole_text:
                others = [each.name for each in PROTOCOLS.values() if each.whole_text]
                raise ProtocolError.of(
                    "unit",
                    f"{self.unit!r} counts the whole text, but protocol {self.name!r} leaves part of it unscored; "
                    f"use unit='token', or protocol {_either(others)}",
                )
            if self.average == "window":
                raise ProtocolError.of("unit", f"average='window' is defined per token only, not per {self.unit!r}")
        if self.max_length is not None and self.max_length < convention.least_length:
            raise ProtocolError.of(
                "max_length",
                f"protocol {self.name!r} scores nothing in fewer than {convention.least_length} tokens, "
                f"got {self.max_length}",
            )
        if self.max_length is not None and self.stride is not None and self.stride > self.max_length:
            raise ProtocolError.of(
                "stride", f"at most max_length={self.max_length} (else tokens are skipped), got {self.stride}"
            )

    @property
    def convention(self) -> Convention:
        """What the protocol's name stands for."""
        return PROTOCOLS[self.name]

    def windowing(self, context: int | None, *, model: str) -> Windowing:
        """Fill in what the model decides.

        Args:
            context: Tokens the model can read, or None where it has no limit of its own (Mamba, RWKV, ALiBi).
            model: The model's name, for messages.

        Raises:
            ProtocolError: No length is known, the window is longer than the context, or the stride than the window.
        """
        convention = self.convention
        length = self.max_length or convention.max_length or context
        if length is None:
            raise ProtocolError.of(
                "max_length",
                f"the model {model!r} names no context length of its own; say max_length=1024, for example",
            )
        if context is not None and length > context and not self.allow_beyond_context:
            default = "" if self.max_length else f" (the default of protocol {self.name!r})"
            raise ProtocolError.of(
                "max_length",
                f"{length}{default} is longer than the context of the model {model!r}, {context} tokens; "
                f"say max_length={context} or less, or allow_beyond_context=True to measure it all the same",
            )
        stride = self.stride or (max(1, length // 2) if convention.has_stride else length)
        if stride > length:
            raise ProtocolError.of("stride", f"at most max_length={length} (else tokens are skipped), got {stride}")
        # Sliding windows without overlap are another protocol's windows: one address for both.
        name = convention.without_overlap if convention.without_overlap and stride == length else self.name
        return Windowing(name, length, stride, self.add_bos_token)


def one_of(key: str, value: object, valid: Iterable[str]) -> None:
    """Refuse a value that is none of the `valid` names."""
    names = list(valid)
    if value not in names:
        raise ProtocolError.of(key, f"expected one of {', '.join(names)}; got {value!r}{nearest(str(value), names)}")


def _either(names: list[str]) -> str:
    """Return names as in ``'a', 'b' or 'c'``."""
    *most, last = map(repr, names)
    return f"{', '.join(most)} or {last}" if most else last


def whole_number(key: str, value: object, *, at_least: int) -> None:
    """Refuse what is neither None nor a whole number of at least `at_least` tokens."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < at_least):
        raise ProtocolError.of(key, f"expected a whole number of tokens, {at_least} or more; got {value!r}")
