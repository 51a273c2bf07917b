"""Tokens per second of the engine llama.cpp against llama.cpp's own program, on one file and context. See README.md.

    python benchmarks/engines.py --llama-perplexity PATH                 # a Llama of 110 million weights in float16
    python benchmarks/engines.py --llama-perplexity PATH --dtype q8_0

Both read the chunks of the protocol ``llama.cpp`` with the same number of threads, in turn, and have to find the same
perplexity; at contexts below 256 the program rounds more coarsely (docs/engines.md). Loading is not counted. Exits
with 1 if the engine is too slow, unless --no-check is given.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from comparison import Row, arguments, exit_status, print_rows
from gguf_subject import make_gguf, make_text

SHARE = 0.9
STAMPS = re.compile(r"^(\d+)\.(\d+)\.(\d+)\.(\d+) I (perplexity: calculating|Final estimate: PPL = (\S+))", re.M)
_TRIES = 20
# Of chunks shorter than that, the program reads fewer than 64 tokens at a time.
_SAME_FROM = 256


def program(path: str, file: Path, text: Path, context: int, threads: int) -> tuple[float, str]:
    """Run ``llama-perplexity``.

    Returns:
        Seconds from the first chunk to the last figure by its own clock, and the perplexity as it prints it.
    """
    command = [path, "-m", str(file), "-f", str(text), "-c", str(context), "-t", str(threads), "--device", "none"]
    for _ in range(_TRIES):  # it may end before its logger has written the last line
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
        stamps = STAMPS.findall(ran.stdout)
        if len(stamps) == 2:
            begun, ended = (60 * int(m) + int(s) + int(ms) / 1e3 + int(us) / 1e6 for m, s, ms, us, *_ in stamps)
            return ended - begun, stamps[1][-1]
    raise SystemExit(f"{' '.join(command)} printed no final estimate")


def engine(file: Path, text: Path, context: int, threads: int) -> tuple[Callable[[], Any], int]:
    """Open a file with the plugin's engine.

    Returns:
        What measures the text and returns the NLLs, and how many tokens are in all chunks.
    """
    from pytest_lmgate.data.corpus import Corpus
    from pytest_lmgate.engines.base import Entry
    from pytest_lmgate.engines.llamacpp import LlamaCpp
    from pytest_lmgate.measure.loop import Job
    from pytest_lmgate.measure.measurement import planned_windows
    from pytest_lmgate.measure.scoring import score
    from pytest_lmgate.settings.entries import ModelSpec
    from pytest_lmgate.settings.requests import Protocol
    from pytest_lmgate.windows.requests import window_requests

    spec = ModelSpec(path=str(file), load={"n_threads": threads})
    known = {"path": Path, "hub_id": lambda _: None, "digest": lambda path: path.name, "device": "cpu"}
    runner = LlamaCpp().describe(Entry(name="model", spec=spec, **known)).open()
    windowing = Protocol("llama.cpp", context).windowing(context, model="model")
    corpus = Corpus("text", (text.read_text(encoding="utf-8"),), is_one_text=True)
    streams, plan = planned_windows(corpus, windowing, runner.tokenizer, "model")
    requests = window_requests(streams, plan, "text")
    return lambda: score(runner, requests, Job(model="model", dataset="text")).nll, len(plan) * context


def compare(args: argparse.Namespace, file: Path, text: Path, context: int) -> bool:
    """Run both in turn; print a table."""
    import numpy as np

    measure, tokens = engine(file, text, context, args.threads)
    ours, theirs = [], []
    for _ in range(args.rounds):
        seconds, printed = program(args.llama_perplexity, file, text, context, args.threads)
        theirs.append(seconds)
        begun = time.perf_counter()
        nll = measure()
        ours.append(time.perf_counter() - begun)
        found = f"{np.exp(nll.mean()):.4f}"
        if abs(float(found) / float(printed) - 1) > (1e-6 if context >= _SAME_FROM else 1e-4):
            raise SystemExit(f"the engine finds a perplexity of {found}, llama-perplexity {printed}: not the same work")
    share = statistics.median(a / b for a, b in zip(theirs, ours, strict=True))
    return print_rows(
        f"context {context}: {tokens:,} tokens of chunks, perplexity {found} here and {printed} there",
        [
            Row("llama-perplexity", f"{tokens / statistics.median(theirs):,.0f} tokens/s"),
            Row("pytest-lmgate's engine", f"{tokens / statistics.median(ours):,.0f} tokens/s"),
            Row("share", f"{share:.2f}", f">= {SHARE}", share >= SHARE, f"median of {args.rounds} rounds"),
        ],
    )


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--llama-perplexity", required=True, metavar="PATH", help="llama.cpp's own program")
    parser.add_argument("--dtype", choices=("f16", "q8_0"), default="f16")
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 128])
    parser.add_argument("--layers", type=int, default=12, help="7 million weights each, plus 25 million (default 12)")
    parser.add_argument("--tokens", type=int, default=4096, help="length of the text (default 4096)")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def main() -> int:
    """Compare at each context."""
    args = _arguments()

    def every() -> bool:
        with tempfile.TemporaryDirectory(prefix="lmgate-benchmark-") as folder:
            file = make_gguf(Path(folder) / "model.gguf", dtype=args.dtype, layers=args.layers)
            text = make_text(Path(folder) / "text.txt", args.tokens)
            holds = [compare(args, file, text, context) for context in args.contexts]
        return all(holds)

    return exit_status(args, every)


if __name__ == "__main__":
    sys.exit(main())
