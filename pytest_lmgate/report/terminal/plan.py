"""The plan of a session for the terminal: a row for each measurement, then the totals."""

from __future__ import annotations

__all__ = ["plan_lines"]

import math
import shutil
from collections.abc import Sequence
from datetime import timedelta

from pytest_lmgate.evaluate.plan import Planned
from pytest_lmgate.report.terminal.columns import fitted
from pytest_lmgate.report.wording.counted import byte_size, counted

_HEADER = ("", "measurement", "gates", "tokens", "weights", "time", "protocol")
_FOLDS = ("gates", "protocol", "weights", "time")


def plan_lines(measurements: Sequence[Planned], problems: Sequence[str] = ()) -> list[str]:
    """Return the lines of a plan, of which the table has as many characters as the terminal.

    The `problems` are sentences on what cannot be planned.
    """
    if not measurements:
        return [*problems] or ["no gate needs a measurement"]
    rows, width = [_row(each) for each in measurements], shutil.get_terminal_size().columns
    lines = fitted(_HEADER, rows, width, _FOLDS)
    for each in measurements:
        lines += [f"{_name(each)}: {', '.join(each.why)}"] * bool(each.why)
    todo = [each for each in measurements if not each.is_cached]
    begun = sum(each.done > 0 for each in todo)
    known = f"{len(measurements) - len(todo)} cached, {begun} begun, {len(todo) - begun} to be made"
    lines.append(f"{counted(len(measurements), 'measurement')}: {known}")
    return [*lines, *(_totals(todo) if todo else []), *problems]


def _totals(todo: Sequence[Planned]) -> list[str]:
    tokens, unknown = _sum([None if each.tokens is None else _left(each, each.tokens) for each in todo])
    most = "at most " * any(each.is_most for each in todo)
    seconds, untimed = _sum([each.seconds for each in todo])
    weights = {name: size for each in todo for name, size in each.weights.items()}
    return [
        f"tokens: {most}{tokens:,.0f}{_more(unknown, 'whose model has to be loaded to count it')}"
        if unknown < len(todo)
        else "tokens: not known, since the models have to be loaded to count them",
        f"time: about {_time(seconds)} without loading models{_more(untimed, 'whose speed is not in the cache')}"
        if untimed < len(todo)
        else "time: not known, since the cache has no speed of these models on this device",
        f"models to load: {', '.join(f'{name} ({_memory(size)})' for name, size in weights.items())}",
    ]


def _row(each: Planned) -> tuple[str, ...]:
    state = "cached" if each.is_cached else f"{math.floor(100 * each.done)} % done" if each.done else "to measure"
    name, gates = _name(each), str(each.gates)
    if each.is_cached:
        return state, name, gates, "", "", "", each.protocol
    tokens = "?" if each.tokens is None else f"{'<= ' * each.is_most}{_left(each, each.tokens):,.0f}"
    weights = " + ".join(map(_memory, each.weights.values()))
    return state, name, gates, tokens, weights, "?" if each.seconds is None else _time(each.seconds), each.protocol


def _name(each: Planned) -> str:
    return f"{', '.join(each.metrics)}: {each.words}"


def _left(each: Planned, tokens: int) -> float:
    return tokens * (1 - each.done)


def _memory(size: int) -> str:
    return byte_size(size) if size else "?"


def _time(seconds: float) -> str:
    return str(timedelta(seconds=math.ceil(seconds)))


def _sum(numbers: Sequence[float | None]) -> tuple[float, int]:
    """Return the sum of what is known, and how many are not."""
    known = [number for number in numbers if number is not None]
    return sum(known), len(numbers) - len(known)


def _more(count: int, which: str) -> str:
    return f", and that of {counted(count, 'measurement')} {which}" if count else ""
