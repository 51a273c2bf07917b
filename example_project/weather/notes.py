"""A weather record as a note: the columns of the data files, and the prompt that a writer gets them in.

A note uses words of the bulletins only, so that one tokenizer serves every model here.
"""

from __future__ import annotations

__all__ = ["PROMPT", "columns", "prompt"]

from .record import Period, Record
from .wording import PERIODS, degrees

PROMPT = "{place}, {season}.\n{weather}\n\n"
"""The template of the datasets in lmgate.yaml; the bulletin follows."""

_WINDS = {"calm": " no wind", "light": " light", "fresh": " fresh", "strong": " gusts"}


def columns(record: Record) -> dict[str, str]:
    """Return the columns of a record, each a text: ``place``, ``season``, and ``weather`` with a line per period."""
    lines = (f"{PERIODS[index]}:{_told(period)}." for index, period in enumerate(record.periods))
    return {"place": record.place, "season": record.season, "weather": "\n".join(lines)}


def prompt(record: Record) -> str:
    """Return the text that a bulletin of the record is to follow."""
    return PROMPT.format(**columns(record))


def _told(period: Period) -> str:
    direction = f" {period.direction}" if period.direction else ""
    warning = f", {period.warning} warning" if period.warning else ""
    return f" {period.sky},{degrees(period.celsius)},{_WINDS[period.wind]}{direction}{warning}"
