"""Speed and memory of a perplexity gate, side by side with what people would otherwise run. See README.md.

    python benchmarks/perplexity.py                   # everything, half an hour
    python benchmarks/perplexity.py --only engine     # floor and published loop, in one process, by both shapes
    python benchmarks/perplexity.py --only engine --shapes body --strides 512
    python benchmarks/perplexity.py --only memory     # extra peak memory, a process each

Exits with 1 if a requirement is broken, unless --no-check is given.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from comparison import Row, arguments, exit_status, print_rows, run_rounds
from subject import CONTEXT, SHAPES, Subject, environment, load_model, make_subject

SHARE_OF_FLOOR = 0.95
TIMES_LOOP = 0.97
SHORT = 3_000  # tokens of a text that feels the trials of a model
SHARE_OF_MEMORY = 0.25
_PARTS = ("engine", "memory")


def engine(subject: Subject, shape: str, strides: Sequence[int], rounds: int, loop_rounds: int, threads: int) -> bool:
    """Compare the engine with the floor and with the published loop; print a table per stride, and one of a short text.

    The model is proved once, as it is for its first gate, and then measured as later gates and sessions do.
    """
    from contestants import ours

    loaded, words = load_model(subject, threads), subject.text.read_text(encoding="utf-8").split(" ")
    print(f"\n{SHAPES[shape]}")
    proofs: dict[str, Any] = {}
    ours(_job(loaded, words, CONTEXT), proofs)
    holds = True
    for tokens, stride in [(len(words), stride) for stride in strides] + [(SHORT, CONTEXT)]:
        holds &= _engine(_job(loaded, words[:tokens], stride), proofs, rounds, loop_rounds, short=tokens == SHORT)
    return holds


def _job(loaded: Any, words: Sequence[str], stride: int) -> Any:
    from contestants import job

    return job(loaded, " ".join(words), max_length=CONTEXT, stride=stride)


def _engine(what: Any, proofs: dict[str, Any], rounds: int, loop_rounds: int, *, short: bool) -> bool:
    from contestants import Floor, ours, published_loop

    floor = Floor(what)
    _check_equal(ours(what, proofs), published_loop(what), what.plan.targets)
    timed = run_rounds(
        {
            "floor": floor.run,
            "ours": lambda: ours(what, dict(proofs)),
            "unproved": lambda: ours(what),
            "loop": lambda: published_loop(what),
        },
        rounds,
        at_most={"loop": rounds if short else loop_rounds, "unproved": rounds if short else 1},
    )
    share, speedup = timed.ratio("floor", "ours"), timed.ratio("loop", "ours")
    required = "" if short else f">= {SHARE_OF_FLOOR:.0%}"
    return print_rows(
        f"stride {what.stride}: {len(what.plan)} windows, {int(what.plan.targets.sum()):,} targets; {timed.note}",
        [
            Row("floor", f"{timed.median('floor'):.2f} s", note=f"batch {floor.batch}, tile {floor.tile}"),
            Row("pytest-lmgate's engine", f"{timed.median('ours'):.2f} s"),
            Row("the same, of a model that is new to it", f"{timed.median('unproved'):.2f} s"),
            Row("published loop", f"{timed.median('loop'):.2f} s"),
            Row("share of the floor", f"{share:.1%}", required, short or share >= SHARE_OF_FLOOR),
            Row("speed-up over the published loop", f"{speedup:.2f}x", f">= {TIMES_LOOP}x", speedup >= TIMES_LOOP),
        ],
    )


def extra_peak_bytes(which: str, subject: Subject, stride: int, threads: int) -> int:
    """Run one measurement in a fresh process; return by how much memory rose above the loaded model at the highest.

    Args:
        which: ``ours`` or ``loop``.
        subject: What to measure.
        stride: Stride of the windows.
        threads: Threads of torch.
    """
    what = [which, str(subject.folder), str(subject.tokens), str(stride), str(threads)]
    command = [sys.executable, __file__, "--peak", *what]
    return int(_run(command, subject.folder, environment(subject, threads)).splitlines()[-1])


def _measure_peak(which: str, folder: str, tokens: str, stride: str, threads: str) -> int:
    """The same, in this process. Linux: the high-water mark of the resident set is reset after loading."""
    from contestants import ours, published_loop

    subject = Subject(Path(folder), int(tokens))
    words = subject.text.read_text(encoding="utf-8").split(" ")
    what = _job(load_model(subject, int(threads)), words, int(stride))
    Path("/proc/self/clear_refs").write_text("5")
    before = _status_bytes("VmHWM")
    {"ours": ours, "loop": published_loop}[which](what)
    return _status_bytes("VmHWM") - before


def _status_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(f"{key}:"))
    return int(value) * 1024


def _run(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> str:
    done: Any = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return str(done.stdout)


def memory(subject: Subject, stride: int, threads: int) -> bool:
    """Compare extra peak memory over the loaded model with the published loop's."""
    peaks = {which: extra_peak_bytes(which, subject, stride, threads) for which in ("ours", "loop")}
    share = peaks["ours"] / peaks["loop"]
    return print_rows(
        f"extra peak memory over the loaded model, stride {stride}, a fresh process each",
        [
            Row("pytest-lmgate's engine", f"{peaks['ours'] / 2**20:.0f} MiB"),
            Row("published loop", f"{peaks['loop'] / 2**20:.0f} MiB"),
            Row("share of the loop's", f"{share:.1%}", f"<= {SHARE_OF_MEMORY:.0%}", share <= SHARE_OF_MEMORY),
        ],
    )


def _check_equal(nll: object, losses: Sequence[float], targets: object) -> None:
    """Refuse to compare the speed of two programs that do not do the same: the loop's windows, weighed rightly."""
    import numpy as np

    mine, theirs = float(np.sum(nll, dtype=np.float64)), float(np.dot(losses, np.asarray(targets)))
    if not abs(mine / theirs - 1) < 1e-5:
        raise SystemExit(f"the engine sums {mine} nats, the published loop {theirs}: not the same measurement")


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=_PARTS, default=_PARTS, help="parts to run")
    parser.add_argument("--tokens", type=int, default=20_000, help="length of the text (default 20000)")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), help="models of the engine's part")
    parser.add_argument("--strides", type=int, nargs="+", default=[1024, 512, 128])
    parser.add_argument("--rounds", type=int, default=3, help="rounds of floor and engine per stride")
    parser.add_argument("--loop-rounds", type=int, default=2, help="in how many of them the published loop runs")
    parser.add_argument("--memory-stride", type=int, default=512)
    parser.add_argument("--peak", nargs=5, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Run the parts asked for."""
    args = _arguments()
    if args.peak:
        print(_measure_peak(*args.peak))
        return 0

    def compare() -> bool:
        holds = True
        with tempfile.TemporaryDirectory(prefix="lmgate-benchmark-") as folder:
            for shape in args.shapes if "engine" in args.only else ():
                subject = make_subject(Path(folder) / shape, tokens=args.tokens, shape=shape)
                holds &= engine(subject, shape, args.strides, args.rounds, args.loop_rounds, args.threads)
            subject = make_subject(Path(folder) / "whole", tokens=args.tokens)
            if "memory" in args.only:
                holds &= memory(subject, args.memory_stride, args.threads)
        return holds

    return exit_status(args, compare)


if __name__ == "__main__":
    sys.exit(main())
