"""Multiple choice side by side with lm-evaluation-harness: likelihoods of the same choices, in one process.

    python benchmarks/choices.py                     # pip install lm_eval==0.4.13
    python benchmarks/choices.py --questions 8 --no-check

Exits with 1 where a requirement is broken, unless --no-check is given.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from comparison import Row, arguments, exit_status, print_rows, run_rounds
from subject import VOCABULARY, load_model, make_subject

TIMES_HARNESS = {"letters": 3.0, "sentences": 2.0}
# Tokens of a question and of each of its four choices: as in MMLU with five examples, and as in HellaSwag.
SHAPES = {"letters": (400, 1), "sentences": (80, 25)}


def compare(loaded: Any, shape: str, questions: int, rounds: int, batch_size: int) -> bool:
    """Score four choices of each question by both programs, and print how long they took."""
    from lm_eval.models.huggingface import HFLM

    from pytest_lmgate.backends.hf.models.loading import tokenizer_facts
    from pytest_lmgate.backends.hf.runner import TransformersRunner
    from pytest_lmgate.data.requests.choices import Question, plan_choices
    from pytest_lmgate.data.requests.windows import window_requests
    from pytest_lmgate.engine.loop import Job
    from pytest_lmgate.engine.scoring import score

    drawn, (length, each) = np.random.default_rng(0), SHAPES[shape]

    def words(count: int) -> str:
        return " ".join(f"w{number:x}" for number in drawn.integers(0, VOCABULARY - 1, count))

    letters = tuple(words(each) for _ in range(4))
    rows = [
        Question(words(length), letters if shape == "letters" else tuple(words(each) for _ in range(4)), 0)
        for _ in range(questions)
    ]
    facts = tokenizer_facts(loaded.tokenizer)
    streams, plan = plan_choices(rows, facts, delimiter=" ", max_length=1024, name="quiz", model="subject")
    lm = HFLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=batch_size, device="cpu")
    encode = loaded.tokenizer.encode
    asked = [
        ((row.text, choice), encode(row.text), encode(choice))
        for row, choice in itertools.chain.from_iterable(zip([row] * 4, row.choices, strict=True) for row in rows)
    ]

    def ours() -> np.ndarray:
        requests = window_requests(streams, plan, "quiz")
        return score(TransformersRunner(loaded, None), requests, Job(model="subject", dataset="quiz")).nll

    def harness() -> list[float]:
        return [found for found, _ in lm._loglikelihood_tokens(asked, disable_tqdm=True)]

    sums = -np.add.reduceat(ours(), np.concatenate([[0], np.cumsum(plan.targets)[:-1]]))
    np.testing.assert_allclose(sums, harness(), rtol=1e-5)
    timed = run_rounds({"ours": ours, "harness": harness}, rounds)
    times, least = timed.ratio("harness", "ours"), TIMES_HARNESS[shape]
    return print_rows(
        f"{shape}: {questions} questions of {length} tokens, four choices of {each}; {timed.note}",
        [
            Row("pytest-lmgate's engine", f"{timed.median('ours'):.2f} s"),
            Row("lm-evaluation-harness", f"{timed.median('harness'):.2f} s", note=f"batch size {batch_size}"),
            Row("harness / ours", f"{times:.2f}x", f">= {least:.0f}x", times >= least),
        ],
    )


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--questions", type=int, default=100, help="how many (default 100)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8, help="of the harness (default 8)")
    return parser.parse_args()


def main() -> int:
    """Compare both shapes of questions."""
    args = _arguments()

    def both() -> bool:
        with tempfile.TemporaryDirectory(prefix="lmgate-benchmark-") as folder:
            loaded = load_model(make_subject(Path(folder), tokens=16), args.threads)
            holds = [compare(loaded, shape, args.questions, args.rounds, args.batch_size) for shape in SHAPES]
        return all(holds)

    return exit_status(args, both)


if __name__ == "__main__":
    sys.exit(main())
