"""Small models and data for docs/howto/from_lm_eval.md and from_other_ci.md.

    python -m tests.docs.small_models FOLDER

The rows have the columns of the real data sets. A model knows one word behind each: it writes the answer where it knows
what follows the prompt's last word. ``base`` answers four of five questions, ``rounded`` about as many,
and ``damaged`` fewer.
"""

import itertools
import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.end_to_end.writers import make_writer

SPECIAL = ("<unk>", "<s>", "</s>")
NAMES = ("Tom", "Mina", "Ana", "Bo")
SUBJECTS = ("anatomy", "astronomy", "law", "marketing")
LETTERS = "ABCD"
Rows = list[dict[str, Any]]


def gsm8k() -> Rows:
    rows = []
    for number, (first, second) in enumerate(itertools.product(range(3, 23), range(2, 12))):
        question = f"{NAMES[number % 4]} has {first} apples and buys {second} more. How many is {first}+{second}?"
        answer = f"{first}+{second}=<<{first}+{second}={first + second}>>{first + second}\n#### {first + second}"
        rows.append({"question": question, "answer": answer})
    return rows


def mmlu() -> Rows:
    drawn = random.Random(2)
    return [
        {
            "subject": SUBJECTS[number // 50],
            "question": f"Which is right in case {number}?",
            **{letter: f"the {letter.lower()}{number}" for letter in LETTERS},
            "answer": drawn.choice(LETTERS),
        }
        for number in range(200)
    ]


def cnn_dailymail() -> Rows:
    return [
        {"article": f"Rain fell all day in place{number}", "highlights": f"Flood-in-place{number}: roads are closed"}
        for number in range(40)
    ]


def hellaswag() -> Rows:
    drawn = random.Random(3)
    endings = [[f"e{number}-{at} box" for at in range(4)] for number in range(50)]
    return [
        {"ctx": f"She opens box{number}", "endings": each, "label": drawn.choice("0123")}
        for number, each in enumerate(endings)
    ]


def successors() -> dict[str, str]:
    """Return the word behind each last word of a prompt, by which all answers are right."""
    found = {row["question"].split()[-1]: row["answer"].split()[-1] for row in gsm8k()}
    found |= {row["D"].split()[-1]: row["answer"] for row in mmlu()}
    found |= {row["article"].split()[-1]: row["highlights"].split()[0] for row in cnn_dailymail()}
    found |= {row["ctx"].split()[-1]: row["endings"][int(row["label"])].split()[0] for row in hellaswag()}
    return found


def some_wrong(right: Mapping[str, str], share: float, seed: int) -> dict[str, str]:
    """Return successors of which a share is that of another row of the same kind."""
    drawn, others = random.Random(seed), sorted(right.values())
    wrong = set(drawn.sample(sorted(right), round(share * len(right))))

    def other(then: str) -> str:
        return drawn.choice([each for each in others if each.isdigit() == then.isdigit() and len(each) == len(then)])

    return {word: other(then) if word in wrong else then for word, then in right.items()}


def save_model(folder: Path, after: Mapping[str, str]) -> None:
    """Save a Llama that writes the successor of each word, and behind another word ends."""
    endings = [ending.split()[0] for row in hellaswag() for ending in row["endings"]]
    words = list(dict.fromkeys([*SPECIAL, *after, *after.values(), *endings, "roads", "are", "closed"]))
    behind = {word: "roads" for word in words if word.startswith("Flood")} | {"roads": "are", "are": "closed"}
    make_writer(folder, words, {**dict.fromkeys(words, "</s>"), **behind, **after}, sure=1.0, context=256)


def write_rows(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    folder = Path(sys.argv[1])
    for rows in (gsm8k, mmlu, cnn_dailymail, hellaswag):
        write_rows(folder / "data" / f"{rows.__name__}.jsonl", rows())
    base = some_wrong(successors(), 0.2, 1)
    save_model(folder / "models" / "base", base)
    for name, share in (("rounded", 0.01), ("damaged", 0.08)):
        save_model(folder / "models" / name, some_wrong(base, share, 7))


if __name__ == "__main__":
    main()
