"""Running a batch, and where memory does not suffice, less at a time."""

from __future__ import annotations

__all__ = ["failure", "run_halving"]

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from pytest_lmgate.engine.memory import is_out_of_memory, release
from pytest_lmgate.errors import EngineError, LmgateError

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_halving(
    batch: Sequence[Item],
    run: Callable[[Sequence[Item]], Result],
    *,
    device: torch.device,
    name: str,
    what: Callable[[Sequence[Item]], str],
    shrink: Callable[[int], None],
) -> list[Result]:
    """Run a batch, in parts half as long as often as memory asks for; once halved, the parts stay so.

    Args:
        batch: Items.
        run: Runs some of them.
        device: Where, to give memory back to.
        name: The model's name, for messages.
        what: Describes items, for messages.
        shrink: Told how many items at most fit.

    Returns:
        The results of the parts, in order.

    Raises:
        EngineError: A single item does not fit, or the model failed otherwise.
        LmgateError: Whatever else `run` raises of this package.
    """
    results: list[Result] = []
    done, size = 0, len(batch)
    while done < len(batch):
        part = batch[done : done + size]
        try:
            results.append(run(part))
            done += len(part)
            continue
        except LmgateError:
            raise
        except Exception as error:
            if len(part) == 1 or not is_out_of_memory(error):
                raise failure(error, device=device, name=name, what=what(part)) from error
        # Outside the handler: the traceback would keep the failed part's tensors alive.
        release(device)
        size = len(part) // 2
        shrink(size)
    return results


def failure(error: Exception, *, device: torch.device, name: str, what: str) -> EngineError:
    """Return what to raise when running `what` failed."""
    if is_out_of_memory(error):
        return EngineError(
            f"model {name!r}: out of memory with {what} alone on {device}; use shorter inputs (max_length), dtype: "
            f"bfloat16, or a device with more memory ({error})"
        )
    return EngineError(
        f"model {name!r}: running {what} failed: {type(error).__name__}: {error}; an input beyond the model's context "
        "fails like this"
    )
