"""What a tokenizer puts around every text: special tokens before and behind the text's own. Pure."""

from __future__ import annotations

__all__ = ["Framing"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass

_PROBES = ("a", "1", "的")


@dataclass(frozen=True)
class Framing:
    """The special tokens around a text.

    Attributes:
        prefix: Before it, as BOS or ``[CLS]``.
        suffix: Behind it, as EOS or ``[SEP]``.
    """

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()

    @classmethod
    def of(cls, encode: Callable[[str, bool], Sequence[int]]) -> Framing:
        """Find it out.

        Args:
            encode: Text and whether to add special tokens, to token ids.
        """
        for probe in _PROBES:
            framed, plain = tuple(encode(probe, True)), tuple(encode(probe, False))
            for begin in range(len(framed) - len(plain) + 1 if plain else 0):
                end = begin + len(plain)
                if framed[begin:end] == plain:
                    return cls(framed[:begin], framed[end:])
        return cls()

    def own(self, ids: Sequence[int]) -> list[int]:
        """Return the text's own tokens of `ids`, which the tokenizer gave with special tokens."""
        return list(ids[len(self.prefix) : len(ids) - len(self.suffix)])

    def around(self, ids: Sequence[int], *, suffix: bool = True) -> list[int]:
        """Put the special tokens around a text's own, those behind it where `suffix` says so."""
        return [*self.prefix, *ids, *(self.suffix if suffix else ())]
