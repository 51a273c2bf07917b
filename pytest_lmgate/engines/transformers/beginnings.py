"""Requests that begin alike: their beginning is read once, and its keys and values are kept for the next ones.

The choices of a question share the question, and questions with the same examples share these. In the order of their
token ids such requests are neighbours. A run of neighbours is read in two passes: what they share, as far as it was not
read just before, and what follows it in each of them. That is for models whose cache is keys and values of all tokens;
a trial compares the numbers with those of whole requests, so that any other model is read as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from pytest_lmgate.arrays import Ints
from pytest_lmgate.engines.devices import sent
from pytest_lmgate.engines.transformers.head import Scorer
from pytest_lmgate.windows.requests import Request

Past = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, of the tokens of one row."""
NO_CACHE = (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""What a model raises whose cache is another."""
LEAST_SAVED = 0.3
"""The share of all tokens from which on it is worth while to share them."""
# Tokens that take about as long as one more pass of a model.
_CPU_PASS, _ACCELERATOR_PASS = 16, 1024
# Bytes of the keys and values that the requests of a pass read.
_MOST_KEPT = 2**30


class Beginnings:
    """Reads requests of one model, in evaluation mode, by a scorer with a head; a batch may read so many tokens."""

    def __init__(self, scorer: Scorer, model: Any, device: torch.device, tokens: int) -> None:
        self._scorer, self._model, self._device, self._tokens = scorer, model, device, tokens
        self._pass = _CPU_PASS if device.type == "cpu" else _ACCELERATOR_PASS
        self._ids: Ints = np.empty(0, dtype=np.int64)
        self._past: Past = []
        self._token_bytes = 0  # of its keys and values; unknown before the trial
        self.has_shared = False  # whether any beginning was kept for other requests

    def states(self, requests: Sequence[Request]) -> Tensor:
        """Return the head's input for each target of the requests, shape ``[targets, hidden]``."""
        # What earlier requests left would change the rounding, and a run that is resumed has not read them.
        self._ids, self._past = self._ids[:0], []
        return torch.cat([self._read(some, shared) for some, shared in self._runs(requests)])

    def _runs(self, requests: Sequence[Request]) -> Iterator[tuple[list[Request], int]]:
        """Yield neighbours to read together, and how many tokens they share."""
        run, shared = [requests[0]], int(requests[0].at.min())
        for at, request in enumerate(requests[1:], 2):
            joint = min(shared, common(run[0].ids, request.ids), int(request.at.min()))
            size, longest = len(run) + 1, max(len(run[0].ids), len(request.ids))
            fits = size * (longest - joint) <= self._tokens and size * longest * self._token_bytes <= _MOST_KEPT
            # A single request shares nothing yet; several read again what they do not share with this one.
            again = len(run) * (shared - joint) if len(run) > 1 else 0
            later = requests[at : at + 1]  # may share more with this request than this one with the run
            lost = max([0, *(min(common(request.ids, each.ids), int(request.at.min())) - joint for each in later)])
            if fits and max(again, lost) <= self._pass:
                run, shared = [*run, request], joint
            else:
                yield run, shared
                run, shared = [request], int(request.at.min())
        yield run, shared

    def _read(self, requests: Sequence[Request], shared: int) -> Tensor:
        known = common(self._ids, requests[0].ids[:shared])
        shared = shared if len(requests) > 1 else known  # one request is read in one pass
        beginning = requests[0].ids[:shared]
        self._past = [(keys[..., :known, :], values[..., :known, :]) for keys, values in self._past if known]
        self._ids = beginning[:known]
        if known < shared:
            cache = cache_of(self._past, 1)
            self._scorer.read(self._model, sent(torch.from_numpy(beginning[None, known:]), self._device), cache)
            self._past, self._ids = past_of(cache, shared), beginning
            self._token_bytes = sum(tensor.nbytes for layer in self._past for tensor in layer) // shared
            self.has_shared = True
        tails = [torch.from_numpy(request.ids[shared:]) for request in requests]
        padded = sent(pad_sequence(tails, batch_first=True), self._device)
        states = self._scorer.read(self._model, padded, cache_of(self._past, len(requests)))
        counts = torch.tensor([len(request.targets) for request in requests])
        rows = torch.repeat_interleave(torch.arange(len(requests)), counts)
        columns = torch.from_numpy(np.concatenate([request.at for request in requests]) - shared)
        return states[sent(rows, states.device), sent(columns, states.device)]


def cache_of(past: Past, rows: int) -> Any:
    """Return a cache with the same keys and values in so many rows; an empty one without any."""
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(past):
        cache.update(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1), layer)
    return cache


def past_of(cache: Any, tokens: int) -> Past:
    """Return the keys and values that a model has put into a cache; ValueError if an adapter added prefixes."""
    past = [(layer.keys, layer.values) for layer in cache.layers]
    if not past or any(tensor.shape[-2] != tokens for layer in past for tensor in layer):
        raise ValueError(f"expected a cache of keys and values of {tokens:,} tokens")
    return past


def common(one: Ints, other: Ints) -> int:
    """Return how many tokens two texts have in common at their beginning."""
    size = min(len(one), len(other))
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if len(differ) else size


def order_by_beginning(ids: Sequence[Ints]) -> tuple[Ints, float, int]:
    """Order texts by their tokens.

    Return the order, the share of tokens that each has in common with the one before, and the place in the order of the
    text that has most. Equal texts count as one.
    """
    order = np.array(sorted(range(len(ids)), key=lambda at: ids[at].astype(">u4").tobytes()), dtype=np.int64)
    shared, total = [0], len(ids[order[0]])
    for before, after in pairwise(order.tolist()):
        same = common(ids[before], ids[after])
        is_new = not same == len(ids[before]) == len(ids[after])
        shared.append(same if is_new else 0)
        total += len(ids[after]) if is_new else 0
    return order, sum(shared) / max(1, total), int(np.argmax(shared))
