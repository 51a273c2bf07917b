"""Faults of the cache of keys and values.

What a model has cached is damaged when it begins to read a token that it wrote: it reads the prompt as it should, and
goes on from a damaged cache. So only gates that write see it, and `self_kl`, which reads again what was written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from pytest_lmgate.engines.transformers.beginnings import NO_CACHE, past_of
from pytest_lmgate.engines.transformers.forward import inputs_of
from pytest_lmgate.tools.drill.planting import Broken, NotPlanted, rounded

_TRIED_TOKENS = 4


def round_cache(broken: Broken, level: float) -> None:
    def coarse(numbers: Tensor, new: int, *_: Any) -> Tensor:
        return torch.cat([numbers[..., :-new, :], rounded(numbers[..., -new:, :], level)], -2)

    _spoil(broken, coarse)


def lose_last(broken: Broken, level: float) -> None:
    """Have zeros where the last tokens of the prompt were."""
    _spoil_rows(broken, lambda row, *_: row[:, -int(level) :].zero_())


def keep_stale(broken: Broken, level: float) -> None:
    """Have the tokens before, in the place of the last tokens of the prompt."""

    def stale(row: Tensor, begin: int, *_: Any) -> None:
        tokens = row.shape[1]
        count = min(int(level), (tokens - max(0, begin)) // 2)
        row[:, tokens - count :] = row[:, tokens - 2 * count : tokens - count].clone()

    _spoil_rows(broken, stale)


def take_other(broken: Broken, level: float) -> None:
    """Have the beginning of the longest prompt, in the place of each prompt's own."""
    other = functools.cache(lambda: _read(broken, broken.prompts[0].ids[: int(level)]).layers)

    def exchanged(row: Tensor, begin: int, layer: int, what: str) -> None:
        theirs, first = getattr(other()[layer], what)[0], max(0, begin)  # a window has lost what is in front of it
        place = row[:, first : max(first, begin + theirs.shape[1])]
        place.copy_(theirs[:, first - begin :][:, : place.shape[1]])

    _spoil_rows(broken, exchanged)


def _spoil_rows(broken: Broken, change: Callable[[Tensor, int, int, str], object]) -> None:
    """Change the cache before the first token behind the prompt: of each row, shape ``[heads, tokens, numbers]``."""

    def spoilt(numbers: Tensor, new: int, begins: Sequence[int], layer: int, what: str) -> Tensor:
        if new == numbers.shape[-2]:  # later, one token is new
            numbers = numbers.clone()
            for row, begin in zip(numbers, begins, strict=True):
                change(row, begin, layer, what)
        return numbers

    _spoil(broken, spoilt)


def _spoil(broken: Broken, damage: Callable[[Tensor, int, Sequence[int], int, str], Tensor]) -> None:
    """Damage the cache before each token behind the prompt.

    `damage` takes keys or values, shape ``[rows, heads, tokens, numbers]``, and how many tokens are new since the last
    time; the place of each row's first token, negative if a window of attention has lost it; the number of the layer,
    and whether it is its ``keys`` or ``values``.
    """

    def spoil(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        cache, mask = named.get("past_key_values"), named.get("attention_mask")
        read = next(each for each in (*given, *named.values()) if isinstance(each, Tensor))
        # Likelihoods may be read behind a beginning that requests share, which is no cache of the model's own.
        if not broken.writes or cache is None or read.shape[1] != 1 or not (length := cache.get_seq_length()):
            return
        new, cache.damaged = length - getattr(cache, "damaged", 0), length
        pads = [0] * len(read)
        if isinstance(mask, Tensor) and mask.ndim == 2:
            pads = mask.eq(0).sum(1).tolist()
        for number, layer in enumerate(cache.layers):
            for what in ("keys", "values"):
                numbers = getattr(layer, what)
                places = [pad - length + numbers.shape[-2] for pad in pads]
                setattr(layer, what, damage(numbers, min(new, numbers.shape[-2]), places, number, what))

    try:
        past_of(_read(broken, range(_TRIED_TOKENS)), _TRIED_TOKENS)
    except NO_CACHE as error:
        raise NotPlanted("its cache is not keys and values of all tokens") from error
    broken.decoder.register_forward_pre_hook(spoil, with_kwargs=True)


def _read(broken: Broken, ids: Any) -> Any:
    """Return the cache after a row of token ids."""
    cache, model = DynamicCache(), broken.model
    model(**inputs_of(model, torch.as_tensor(ids, device=model.device)[None], cache))
    return cache
