"""Generation side by side with the loop that people write: ``generate``, one row after another. See README.md.

    python benchmarks/generation.py                        # the example's writer on its records
    python benchmarks/generation.py --rows 8 --rounds 1    # a quick look

Both run in one process, in turn, on one loaded model, tokenizing and decoding included, and have to write the same
texts. Exits with 1 if they do not, or if a requirement is broken, unless --no-check is given.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparison import Row, arguments, exit_status, print_rows, run_rounds

TIMES_LOOP = 4.0
_EXAMPLE = Path(__file__).resolve().parents[1] / "example_project"


@dataclass(frozen=True)
class Work:
    """What is written: a loaded model, its context in tokens, prompts, and how many tokens a text may have."""

    loaded: Any
    context: int | None
    prompts: Sequence[str]
    max_new_tokens: int


def load_example(rows: int | None, max_new_tokens: int) -> Work:
    """Load the example's writer and fill the template of its records, as its gates do; the first `rows`, or all."""
    from pytest_lmgate.data.prompts import fill
    from pytest_lmgate.measure.evaluator import Evaluator
    from pytest_lmgate.settings.file import load_project
    from pytest_lmgate.settings.session import Options

    with tempfile.TemporaryDirectory(prefix="lmgate-benchmark-") as folder:
        resolver = Evaluator(load_project(_EXAMPLE), Options(cache=Path(folder), offline=True)).resolver
        source, records = resolver.model("writer"), resolver.rows("records")
        loaded = source.open().loaded
    for parameter in loaded.model.parameters():
        parameter.sum()  # weights are mapped from the file; read them now, not while the clock runs
    template = str(records.spec.prompt)
    prompts = [fill(template, row, records.name, index) for index, row in enumerate(records.rows)]
    return Work(loaded, source.context, prompts[:rows], max_new_tokens)


def ours(work: Work) -> list[str]:
    """Write with the plugin's engine, its proof that rows may share a batch included."""
    from pytest_lmgate.engines.transformers.runner import TransformersRunner
    from pytest_lmgate.measure.loop import Job
    from pytest_lmgate.measure.texts import generate
    from pytest_lmgate.settings.requests import GenerationSettings

    settings = GenerationSettings(max_new_tokens=work.max_new_tokens)
    runner, job = TransformersRunner(work.loaded, work.context), Job(model=work.loaded.name, dataset="records")
    return generate(runner, work.prompts, settings, job, context=work.context)


def loop(work: Work) -> list[str]:
    """Write one row after another, greedily, as the documentation of ``generate`` shows."""
    model, tokenizer, texts = work.loaded.model, work.loaded.tokenizer, []
    for prompt in work.prompts:
        read = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        out = model.generate(**read, max_new_tokens=work.max_new_tokens, do_sample=False)
        texts.append(tokenizer.decode(out[0, read["input_ids"].shape[1] :], skip_special_tokens=True))
    return texts


def compare(work: Work, rounds: int) -> bool:
    """Print the table; return whether everything required holds."""
    written, expected = ours(work), loop(work)  # which also warms both up
    same = sum(a == b for a, b in zip(written, expected, strict=True))
    timed = run_rounds({"ours": lambda: ours(work), "loop": lambda: loop(work)}, rounds)
    speedup, count = timed.ratio("loop", "ours"), len(work.prompts)
    tokens = sum(len(ids) for ids in work.loaded.tokenizer(expected, add_special_tokens=False)["input_ids"])
    return print_rows(
        f"the example's writer, {count} records, {tokens:,} tokens written; {timed.note}",
        [
            Row("pytest-lmgate's engine", f"{timed.median('ours'):.2f} s", note=_speed(tokens, timed.median("ours"))),
            Row("one row at a time", f"{timed.median('loop'):.2f} s", note=_speed(tokens, timed.median("loop"))),
            Row("speed-up", f"{speedup:.2f}x", f">= {TIMES_LOOP:.0f}x", speedup >= TIMES_LOOP),
            Row("texts equal", f"{same} of {count}", "all", same == count),
        ],
    )


def _speed(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:,.0f} tokens/s"


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, help="only the first so many records (default: all)")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="as the gates' own default (default: 128)")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def main() -> int:
    """Compare."""
    args = _arguments()

    def run() -> bool:
        import torch

        torch.set_num_threads(args.threads)
        return compare(load_example(args.rows, args.max_new_tokens), args.rounds)

    return exit_status(args, run)


if __name__ == "__main__":
    sys.exit(main())
