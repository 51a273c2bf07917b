"""``--lmgate-report markdown:FILE``: what a reviewer reads on the page of a pull request.

Names and texts are shown as code, which Markdown does not interpret: no mention, link, image or HTML of a model's
output takes effect.
"""

from __future__ import annotations

__all__ = ["code", "markdown_report", "markdown_section"]

import html
import re
from collections.abc import Sequence
from itertools import accumulate

from pytest_lmgate.gates.verdict import Verdict
from pytest_lmgate.report.results import Results
from pytest_lmgate.report.wording.counted import counted
from pytest_lmgate.report.wording.excerpt import excerpt, shortened
from pytest_lmgate.report.wording.explanation import explain
from pytest_lmgate.report.wording.rows import Row, counts, names, run_facts

_SIZE = 450_000
"""Bytes of all rows, and of all explanations: GitHub refuses a step summary above 1 MiB, a comment above 64 KiB."""
_NAME, _LINE = 300, 2000
_SIGNS = {"pass": "✅", "fail": "❌", "error": "❌", "inconclusive": "⚠️", "xfail": "⚠️"}
_HEADER = (
    "| verdict | gate | value | limit or reference | change | scored | seconds |\n|---|---|---:|---:|---:|---:|---:|"
)


def markdown_report(results: Results) -> str:
    """Return a line with the counts, one with the run, a table with failures first, and the explanations behind it."""
    name_of = dict(zip((verdict.id for verdict in results.verdicts), names(results.verdicts), strict=True))
    ordered = results.worst_first()
    to_explain = [verdict for verdict in ordered if verdict.verdict != "pass"]
    parts = [f"**{counts(results)}**"]
    facts = [f"{key} {code(text, _LINE)}" for key, text in run_facts(results.run).items()]
    parts += [" · ".join(facts)] * bool(facts)
    parts += ["\n".join(f"- ❌ {code(problem, _LINE)}" for problem in results.problems)] * bool(results.problems)
    if ordered:
        rows = _few([_row(results, verdict, name_of[verdict.id]) for verdict in ordered])
        parts += ["\n".join([_HEADER, *rows]), *_left_out(len(ordered) - len(rows), "row")]
        details = _few([_details(verdict, name_of[verdict.id]) for verdict in to_explain])
        parts += [*details, *_left_out(len(to_explain) - len(details), "explanation")]
    return "\n\n".join(parts) + "\n"


def markdown_section(results: Results) -> str:
    """Return the report under a heading, to stand below what others wrote."""
    return f"\n## lmgate\n\n{markdown_report(results)}"


def _row(results: Results, verdict: Verdict, name: str) -> str:
    row, found = Row.of(verdict, results.outcome(verdict)), verdict.comparison
    against = "" if found is None else code(found.against, _NAME)
    cells = (
        f"{_SIGNS[results.outcome(verdict)]} {row.outcome}",
        code(name, _NAME),
        f"{row.value} {row.interval}".strip(),
        f"{row.limit} {against}".strip(),
        f"{row.change}, tolerance {row.tolerance}" if row.change else "",
        row.scored,
        row.seconds,
    )
    return f"| {' | '.join(cells)} |"


def _details(verdict: Verdict, name: str) -> str:
    text = shortened(explain(verdict), _LINE)
    fence = _fence(text, 3)
    summary = f"{verdict.verdict.upper()} <code>{html.escape(excerpt(name, _NAME))}</code>"
    return f"<details><summary>{summary}</summary>\n\n{fence}text\n{text}\n{fence}\n\n</details>"


def code(text: str, width: int) -> str:
    r"""Return a text as code in a cell of a table, in one line.

    A pipe would end the cell and so becomes ``\|``, but after a backslash ``\x7c``, since ``\\|`` ends it too.
    """
    text = re.sub(r"(?<!\\)\|", r"\|", re.sub(r"(?<=\\)\|", r"x7c", excerpt(text, width)))
    if not text:
        return ""
    fence = _fence(text, 1)
    # The blanks keep backticks apart; a reader of Markdown takes them away.
    blank = " " * (text[0] in "` " or text[-1] in "` ")
    return f"{fence}{blank}{text}{blank}{fence}"


def _fence(text: str, shortest: int) -> str:
    """Return more backticks than stand anywhere in a text."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    return "`" * max(shortest, longest + 1)


def _few(texts: Sequence[str]) -> list[str]:
    """Return the first of the texts, as many as fit into a page."""
    sizes = accumulate(len(text.encode("utf-8", "backslashreplace")) for text in texts)
    return [text for text, size in zip(texts, sizes, strict=True) if size <= _SIZE]


def _left_out(count: int, what: str) -> list[str]:
    if not count:
        return []
    return [f"{counted(count, f'more {what}')} would be too much for a page; the reports json and html have all"]
