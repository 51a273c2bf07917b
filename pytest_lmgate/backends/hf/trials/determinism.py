"""A model that draws random numbers while it reads: two passes over the same tokens must give the same numbers."""

from __future__ import annotations

__all__ = ["not_deterministic", "repeatable"]

from collections.abc import Callable

import torch
from torch import Tensor

from pytest_lmgate.errors import ModelError

_ROUNDINGS = 8
_FLOAT32_ROUNDING = 1e-5


def repeatable(compute: Callable[[], Tensor], *, name: str) -> Tensor:
    """Run a model on some tokens by `compute`; where that took random numbers from torch, run it again and compare.

    Raises:
        ModelError: The second run gives other numbers, beyond rounding.
    """
    before = _random_states()
    found = compute()
    if all(torch.equal(one, other) for one, other in zip(before, _random_states(), strict=True)):
        return found
    again = compute()
    if not _agree(found, again):
        raise not_deterministic(name)
    return found


def not_deterministic(name: str) -> ModelError:
    """Return what to raise where a model gave two numbers for the same row."""
    return ModelError(
        f"model {name!r} is not deterministic: it gave two different likelihoods for the same row, but a gate needs "
        "the same number twice; switch off what is random in it, such as dropout that ignores evaluation mode, or "
        "Reformer's attention by random hashes (hash_seed in config.json)"
    )


def _random_states() -> list[Tensor]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states += [torch.cuda.get_rng_state(device) for device in range(torch.cuda.device_count())]
    return states


def _agree(found: Tensor, again: Tensor) -> bool:
    """Whether two results differ by rounding only; NaN is another error, which is raised where it is met."""
    tolerance = max(_ROUNDINGS * torch.finfo(found.dtype).eps, _FLOAT32_ROUNDING)
    found, again = found.double().nan_to_num(), again.double().nan_to_num()
    return bool((found - again).abs().mean() <= tolerance * found.abs().mean())
