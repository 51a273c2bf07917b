"""Which tokens each window reads and scores: pure planning, no model and no text.

A window is ``(begin, end, first)`` in the token stream of one document: the model reads ``t[begin:end]``, after a
prefix token where `prefix` is set, and the targets ``t[first:end]`` are scored. The last token is only a target, so it
need not be fed. Sources of the protocols: docs/protocols.md.
"""

from __future__ import annotations

__all__ = ["WindowPlan", "plan_windows"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.config.protocol import Windowing

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class WindowPlan:
    """Windows in the order of the text; every array has the shape ``[windows]``.

    Attributes:
        document: Index of the stream that the window reads.
        begin: First token read.
        end: One past the last token scored.
        first: First token scored.
        prefix: Whether a prefix token (BOS) is read before `begin`.
    """

    document: Ints
    begin: Ints
    end: Ints
    first: Ints
    prefix: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def targets(self) -> Ints:
        """Targets scored in each window."""
        return self.end - self.first

    @property
    def reads(self) -> Ints:
        """Tokens fed in each window: prefix included, the last target not."""
        return self.end - 1 - self.begin + self.prefix


def plan_windows(windowing: Windowing, lengths: Sequence[int], *, adds_bos: bool = True) -> WindowPlan:
    """Plan the windows of each document.

    Args:
        windowing: Protocol with its numbers.
        lengths: Tokens in each document's stream.
        adds_bos: ``llama.cpp`` only: whether the tokenizer adds a BOS. The stream then starts with one, which is not
            part of `lengths`.

    Returns:
        The windows that score at least one target, in the order of the text.
    """
    rule = _RULES[windowing.protocol]
    parts = [rule(int(length), windowing, adds_bos) for length in lengths]
    document = np.repeat(np.arange(len(parts), dtype=np.int64), [len(part[0]) for part in parts])
    begin, end, first, prefix = (np.concatenate([part[i] for part in parts] or [_NONE]) for i in range(4))
    kept = end > first
    return WindowPlan(document[kept], begin[kept], end[kept], first[kept], prefix[kept].astype(bool))


_NONE: Ints = np.zeros(0, dtype=np.int64)
_Part = tuple[Ints, Ints, Ints, Ints]


def _sliding(total: int, w: Windowing, _: bool) -> _Part:
    """Begin at 0, S, 2S, ...; score what no earlier window scored; stop at the end of the text."""
    count = 0 if total == 0 else 1 + max(0, -(-(total - w.max_length) // w.stride))
    begin = np.arange(count, dtype=np.int64) * w.stride
    end = np.minimum(begin + w.max_length, total)
    previous = np.concatenate([_NONE, [0], end[:-1]])[:count].astype(np.int64)
    # The first token of a window is never a target: there is nothing before it.
    first = np.maximum(previous, begin + 1)
    return begin, end, first, np.zeros_like(begin)


def _chunks(total: int, size: int) -> Ints:
    """Beginnings of the full chunks; the tail is dropped."""
    return np.arange(total // size, dtype=np.int64) * size


def _bos_chunks(total: int, w: Windowing, _: bool) -> _Part:
    """Full chunks of L, each after a BOS, all L scored."""
    begin = _chunks(total, w.max_length)
    return begin, begin + w.max_length, begin, np.ones_like(begin)


def _gptq(total: int, w: Windowing, _: bool) -> _Part:
    """Full chunks of L, no BOS, L - 1 scored."""
    begin = _chunks(total, w.max_length)
    return begin, begin + w.max_length, begin + 1, np.zeros_like(begin)


def _llama_cpp(total: int, w: Windowing, adds_bos: bool) -> _Part:
    """Full chunks of n_ctx; the later half is scored; a BOS takes the place of each chunk's first token."""
    bos = int(adds_bos)
    # Positions below are in the stream without its leading BOS: chunk k reads [BOS] + stream[k*n + 1 : (k+1)*n].
    begin = _chunks(total + bos, w.max_length)
    first = begin + w.max_length // 2 + 1 - bos
    end = begin + w.max_length - bos
    return begin, end, first, np.full_like(begin, bos)


def _lm_eval(total: int, w: Windowing, _: bool) -> _Part:
    """First window after the prefix; later windows score k targets from a full L tokens of context."""
    if total == 0:
        return _NONE, _NONE, _NONE, _NONE
    first = np.arange(0, total, w.max_length, dtype=np.int64)
    end = np.minimum(first + w.max_length, total)
    begin = np.maximum(end - w.max_length - 1, 0)
    begin[0] = 0
    prefix = np.zeros_like(begin)
    prefix[0] = 1
    return begin, end, first, prefix


_RULES: dict[str, Callable[[int, Windowing, bool], _Part]] = {
    "sliding": _sliding,
    "disjoint": _sliding,
    "document": _sliding,
    "bos-chunks": _bos_chunks,
    "gptq": _gptq,
    "llama.cpp": _llama_cpp,
    "lm-eval": _lm_eval,
}
