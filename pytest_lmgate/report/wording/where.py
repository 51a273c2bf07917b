"""Where a candidate got worse, in the lines of an explanation: documents with tokens, positions, tags."""

from __future__ import annotations

__all__ = ["changed", "passage_words", "position_words", "slope_words", "tag_name", "where_lines"]

import shutil
from dataclasses import replace

from pytest_lmgate.gates.comparisons.comparison import Comparison
from pytest_lmgate.gates.where import Passage, PositionChange, TagChange, TokenChange, Where
from pytest_lmgate.report.wording.counted import counted
from pytest_lmgate.report.wording.excerpt import ending, excerpt
from pytest_lmgate.report.wording.numbers import degradation

_PASSAGES, _TOKENS, _TAGS, _NAME = 3, 2, 5, 40
"""Passages, tokens of each, and tags that a failure shows; the page and the JSON report have all."""


def where_lines(found: Comparison, where: Where) -> list[str]:
    """Return the lines."""
    lines = []
    if where.passages:
        tokens = ", and at which tokens" if any(passage.tokens for passage in where.passages) else ""
        lines.append(f"  where      parts of the text that cost most: by how much the loss rose{tokens}")
        for passage in where.passages[:_PASSAGES]:
            lines += _passage(passage, where.per)
    if words := slope_words(where):
        lines.append(f"  positions  {words}")
    return lines + _tags(found, where) + [f"  note       {excerpt(note, 300)}" for note in where.notes]


def passage_words(passage: Passage, per: str) -> str:
    """Return by how much a passage's loss rose: in all, by which passages are sorted, and for each unit."""
    each = f"{passage.rise / passage.count:+.2g} each"
    return f"{passage.rise:+.3g} nats over {counted(passage.count, per)} ({each})"


def _passage(passage: Passage, per: str) -> list[str]:
    begin = f"    {passage.place}: {passage_words(passage, per)}"
    if passage.begins:
        begin += "  "
        begin += excerpt(passage.begins, max(20, shutil.get_terminal_size().columns - len(begin)))
    return [begin, *(_token(token) for token in passage.tokens[:_TOKENS])]


def _token(token: TokenChange) -> str:
    """One line: the token in brackets, with its context."""
    begin = f"      {token.loss - token.reference:+8.3g}  "
    losses = f"  ({token.reference:.3g} to {token.loss:.3g})"
    room = max(20, shutil.get_terminal_size().columns - len(begin) - len(losses) - 2)
    shown = excerpt(token.token, room // 2)
    room = max(8, room - len(shown))
    before = ending(token.before, room * 2 // 3)
    return f"{begin}{before}[{shown}]{excerpt(token.after, max(4, room - len(before)))}{losses}"


def slope_words(where: Where) -> str:
    """Return in words how the change depends on the position in the window; empty where that is within noise."""
    slope = where.slope
    if slope is None or slope.lower <= 0 <= slope.upper or len(where.positions) < 2:
        return ""
    said = "more the later a token stands in the window" if slope.lower > 0 else "less the later a token stands in it"
    first, last = where.positions[0], where.positions[-1]
    return (
        f"the loss rises {said}: {first.change:+.3g} nats at {position_words(first)}, {last.change:+.3g} at "
        f"{position_words(last)}"
    )


def position_words(position: PositionChange) -> str:
    """Return a range of positions, as in ``1 to 64``."""
    alone = position.first == position.last
    return f"{position.first:,}" if alone else f"{position.first:,} to {position.last:,}"


def _tags(found: Comparison, where: Where) -> list[str]:
    worse = [tag for tag in where.tags if tag.is_worse]
    lines = [
        f"{'  tags       ' if not at else ' ' * 13}{tag_name(tag)} {changed(found, tag)}, {counted(tag.rows, 'row')}"
        for at, tag in enumerate(worse[:_TAGS])
    ]
    if len(worse) > _TAGS:
        lines.append(f"{' ' * 13}{len(worse) - _TAGS} more that got worse beyond noise")
    others = [tag for tag in where.tags if not tag.is_worse]
    if others:
        names = ", ".join(f"{tag_name(tag)} {changed(found, tag)}" for tag in others[:_TAGS])
        more = len(others) - len(others[:_TAGS]) + where.more_tags
        text = f"not worse beyond noise: {names}{f' and {more} more' if more else ''}"
        lines.append(f"{'  tags       ' if not lines else ' ' * 13}{text}")
    return lines


def tag_name(tag: TagChange) -> str:
    """Return column and tag, as in ``language=ko``."""
    return f"{excerpt(tag.column, _NAME)}={excerpt(tag.value, _NAME)}"


def changed(found: Comparison, tag: TagChange) -> str:
    """Return a tag's change with its bounds, as a comparison's is written, or why there is no change."""
    if tag.degradation is None:
        return f"({excerpt(tag.problem, 120)})"
    return degradation(replace(found, degradation=tag.degradation, lower=tag.lower, upper=tag.upper))
