"""Bulletins with the records they tell, drawn with a seed, and the held-out file made of them.

    python -m weather.corpus

writes data/bulletins.jsonl, the same bytes each time.
"""

from __future__ import annotations

__all__ = ["HELD_OUT", "HELD_OUT_SEED", "Bulletin", "draw_bulletins", "held_out_lines"]

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from random import Random

from .record import Record, draw_record, record_surprisal
from .wording import word

HELD_OUT_SEED = 2
HELD_OUT = 300
"""Bulletins in the held-out file."""


@dataclass(frozen=True)
class Bulletin:
    """A record and one wording of it.

    Attributes:
        record: What it tells.
        text: How.
        surprisal: -log p(text) in nats under the source, the cost of its end included.
    """

    record: Record
    text: str
    surprisal: float


def draw_bulletins(seed: int) -> Iterator[Bulletin]:
    """Yield bulletins without end; the same for the same seed on every machine."""
    random = Random(seed)
    while True:
        record = draw_record(random)
        text, nats = word(record, random)
        yield Bulletin(record, text, record_surprisal(record) + nats)


def held_out_lines() -> Iterator[str]:
    """Yield the lines of the held-out file: text and record of each bulletin as JSON."""
    for bulletin in islice(draw_bulletins(HELD_OUT_SEED), HELD_OUT):
        yield json.dumps({"text": bulletin.text, "record": asdict(bulletin.record)})


if __name__ == "__main__":
    file = Path(__file__).parents[1] / "data" / "bulletins.jsonl"
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in held_out_lines()), encoding="utf-8", newline="\n")
    print(f"wrote {HELD_OUT} bulletins, {file.stat().st_size:,} bytes")
