"""What commands print: text for people or, with ``--json``, one JSON document for programs."""

from __future__ import annotations

__all__ = ["AsJson", "show"]

import json
from typing import Annotated

import typer

from pytest_lmgate.errors import encodable
from pytest_lmgate.report.wording.excerpt import printable

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def show(data: object, text: str, *, as_json: bool) -> None:
    """Print `data` as JSON or `text`, in which nothing is left that a terminal would obey."""
    if as_json:
        text = encodable(json.dumps(data, indent=2, ensure_ascii=False))
    typer.echo(text if as_json else printable(text))
