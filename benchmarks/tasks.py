"""Tasks with examples side by side with lm-evaluation-harness: choices, and texts after one beginning, in one process.

And the whole process of a cached gate on as many rows as GSM8K has.

    python benchmarks/tasks.py                     # pip install lm_eval==0.4.13
    python benchmarks/tasks.py --only cached
    python benchmarks/tasks.py --questions 8 --no-check

Exits with 1 if a requirement is broken, unless --no-check is given.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from comparison import Row, arguments, exit_status, print_rows, run_rounds
from subject import VOCABULARY, Subject, environment, load_model, make_subject

# Tokens of the examples, of a question and of each of its four choices, and how many times faster than the harness.
SHAPES = {
    "letters": (0, 400, 1, 3.0),
    "sentences": (0, 80, 25, 3.0),
    "sentences after 5 examples": (500, 80, 25, 3.0),
    "letters after 5 examples": (500, 80, 1, 3.0),
}
# Of texts: tokens of the examples, of a question and of a text.
EXAMPLES, QUESTION, WRITTEN, TIMES_TEXTS = 700, 60, 16, 2.0
ROWS, MOST_SECONDS = 1319, 1.0  # of the cached gate
PROJECT = """\
models:
  subject: {path: MODEL, device: cpu}
datasets:
  sums:
    path: sums.jsonl
    source: prompt
    references: answer
    extract: [{regex: {pattern: "w[0-9a-f]*([0-9a-f])"}}, take_first]
    max_new_tokens: 1
gates:
  - no_regression: {metric: exact, model: subject, dataset: sums, tolerance: 0.02}
"""


class Words:
    """Draws texts of words of the vocabulary, one token each."""

    def __init__(self) -> None:
        self._drawn = np.random.default_rng(0)

    def __call__(self, count: int) -> str:
        return " ".join(f"w{number:x}" for number in self._drawn.integers(0, VOCABULARY - 1, count))


def side_by_side(
    what: str, ours: Callable[[], Any], harness: Callable[[], Any], rounds: int, least: float, note: str
) -> bool:
    """Print how long both programs took, and return whether ours is so many times faster."""
    timed = run_rounds({"ours": ours, "harness": harness}, rounds)
    times = timed.ratio("harness", "ours")
    return print_rows(
        f"{what}; {timed.note}",
        [
            Row("pytest-lmgate's engine", f"{timed.median('ours'):.2f} s"),
            Row("lm-evaluation-harness", f"{timed.median('harness'):.2f} s", note=note),
            Row("harness / ours", f"{times:.2f}x", f">= {least:.0f}x", times >= least),
        ],
    )


def compare_choices(lm: Any, loaded: Any, shape: str, args: argparse.Namespace) -> bool:
    """Score four choices of each question by both programs."""
    from pytest_lmgate.engines.tokenizers import tokenizer_facts
    from pytest_lmgate.engines.transformers.runner import TransformersRunner
    from pytest_lmgate.measure.loop import Job, score_requests
    from pytest_lmgate.windows.choices import Question, plan_choices
    from pytest_lmgate.windows.requests import window_requests

    words, (shown, length, each, least) = Words(), SHAPES[shape]
    letters = tuple(words(1) for _ in range(4))
    before = f"{words(shown)} " if shown else ""
    rows = [
        Question((before + words(length),), letters if each == 1 else tuple(words(each) for _ in range(4)), (0,))
        for _ in range(args.questions)
    ]
    facts, encode = tokenizer_facts(loaded.tokenizer), loaded.tokenizer.encode
    streams, plan = plan_choices(rows, facts, delimiter=" ", max_length=1024, name="quiz", model="subject")
    asked = [
        ((prompt, choice), encode(prompt), encode(choice))
        for prompt, choice in itertools.chain.from_iterable(row.pairs for row in rows)
    ]

    def ours() -> np.ndarray:
        requests = window_requests(streams, plan, "quiz")
        return score_requests(TransformersRunner(loaded, None), requests, Job(model="subject", dataset="quiz")).nll

    def harness() -> list[float]:
        return [found for found, _ in lm._loglikelihood_tokens(asked, disable_tqdm=True)]

    sums = -np.add.reduceat(ours(), np.concatenate([[0], np.cumsum(plan.targets)[:-1]]))
    np.testing.assert_allclose(sums, harness(), rtol=1e-5)
    what = f"{shape}: {args.questions} questions of {shown + length} tokens, four choices of {each}"
    return side_by_side(what, ours, harness, args.rounds, least, f"batch size {args.batch_size}")


def compare_texts(lm: Any, loaded: Any, args: argparse.Namespace) -> bool:
    """Write a text after each prompt by both programs."""
    from lm_eval.api.instance import Instance

    from pytest_lmgate.engines.transformers.runner import TransformersRunner
    from pytest_lmgate.measure.loop import Job
    from pytest_lmgate.measure.texts import generate
    from pytest_lmgate.settings.gate_options import GenerationSettings

    words = Words()
    before = words(EXAMPLES)
    prompts = [f"{before} {words(QUESTION)}" for _ in range(args.questions)]
    settings = GenerationSettings(max_new_tokens=WRITTEN)
    how = {"until": ["\n\n\n"], "max_gen_toks": WRITTEN, "do_sample": False}
    asked = [Instance("generate_until", {}, (prompt, dict(how)), number) for number, prompt in enumerate(prompts)]

    def ours() -> Any:
        job = Job(model="subject", dataset="prompts")
        return generate(TransformersRunner(loaded, 1024), prompts, settings, job, context=1024)

    def harness() -> list[str]:
        found: list[str] = lm.generate_until(asked, disable_tqdm=True)
        return found

    written = getattr(found := ours(), "texts", found)
    same = sum(ours_.split() == theirs.split() for ours_, theirs in zip(written, harness(), strict=True))
    assert same >= 0.9 * len(prompts), f"{same} of {len(prompts)} texts are the same"
    what = f"texts: {args.questions} prompts of {EXAMPLES + QUESTION} tokens that share {EXAMPLES}, {WRITTEN} written"
    return side_by_side(what, ours, harness, args.rounds, TIMES_TEXTS, f"batch size {args.batch_size}, {same} equal")


def time_cached_gate(subject: Subject, args: argparse.Namespace) -> bool:
    """Run pytest with one gate on answers whose texts are in the cache; print the time of the whole process."""
    folder, words = subject.folder / "project", Words()
    folder.mkdir()
    (folder / "lmgate.yaml").write_text(PROJECT.replace("MODEL", str(subject.model)))
    (folder / "pytest.ini").write_text("[pytest]\n")
    lines = ({"prompt": words(QUESTION), "answer": f"{row % 16:x}"} for row in range(ROWS))
    (folder / "sums.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def pytest(*options: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", *options]
        how = {"cwd": folder, "env": environment(subject, args.threads), "capture_output": True, "text": True}
        done = subprocess.run(command, check=False, **how)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pytest("--lmgate-update")
    assert "0 measurements" in (shown := pytest()) or "1 cached" in shown, shown
    rounds, before = max(args.rounds, 5), os.times()
    timed = run_rounds({"cached": pytest}, rounds)
    seconds, after = timed.median("cached"), os.times()
    processor = (after.children_user + after.children_system - before.children_user - before.children_system) / rounds
    note = f"processor time {processor:.2f} s"
    row = Row(
        "pytest, the whole process", f"{seconds:.2f} s", f"<= {MOST_SECONDS:.0f} s", seconds <= MOST_SECONDS, note
    )
    return print_rows(f"one cached gate on the answers of {ROWS:,} rows; {timed.note}", [row])


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--questions", type=int, default=100, help="how many (default 100)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["cached"], help="leave the harness out")
    parser.add_argument("--batch-size", type=int, default=8, help="of the harness (default 8)")
    return parser.parse_args()


def main() -> int:
    """Compare all shapes of choices, and texts."""
    args = _arguments()

    def all_of_them() -> bool:
        with tempfile.TemporaryDirectory(prefix="lmgate-benchmark-") as folder:
            subject = make_subject(Path(folder), tokens=16)
            holds = [time_cached_gate(subject, args)]
            if args.only:
                return all(holds)
            from lm_eval.models.huggingface import HFLM

            loaded = load_model(subject, args.threads)
            lm = HFLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=args.batch_size, device="cpu")
            holds += [compare_choices(lm, loaded, shape, args) for shape in SHAPES]
            return all([*holds, compare_texts(lm, loaded, args)])

    return exit_status(args, all_of_them)


if __name__ == "__main__":
    sys.exit(main())
