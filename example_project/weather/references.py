"""Held-out records for a writer, each with several bulletins that would all be right.

    python -m weather.references

writes data/records.jsonl, the same bytes each time.
"""

from __future__ import annotations

__all__ = ["HELD_OUT", "REFERENCES", "held_out_records", "lines"]

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

from .notes import columns
from .record import Record, draw_record
from .wording import word

HELD_OUT = 60
REFERENCES = 5
_SEED = 3


def held_out_records() -> Iterator[tuple[Record, list[str]]]:
    """Yield each record with `REFERENCES` different wordings of it; the same on every machine."""
    random = Random(_SEED)
    for _ in range(HELD_OUT):
        record = draw_record(random)
        wordings: dict[str, None] = {}
        while len(wordings) < REFERENCES:
            wordings[word(record, random)[0]] = None
        yield record, list(wordings)


def lines() -> Iterator[str]:
    """Yield the lines of the file: the columns of `notes.columns` and ``bulletins``."""
    for record, bulletins in held_out_records():
        yield json.dumps({**columns(record), "bulletins": bulletins})


if __name__ == "__main__":
    file = Path(__file__).parents[1] / "data" / "records.jsonl"
    file.write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8", newline="\n")
    print(f"wrote {HELD_OUT} records with {REFERENCES} bulletins each, {file.stat().st_size:,} bytes")
