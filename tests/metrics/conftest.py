"""Corpora with what tokenizers stumble over, and sacrebleu's own command line as the oracle."""

import functools
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

ENGLISH = [
    'The minister said: "We cannot, at present, comment on the 3.5% rise."',
    "It is a guide to action which ensures that the military always obeys the commands of the party.",
    "Prices rose by $1,200.50 in 2019-2020, didn't they?",
    "A state-of-the-art system (see Fig. 2) was shown &quot;yesterday&quot; &amp; today.",
    "HE SHOUTED: No! no... NO!",
    "The cat sat on the mat, and the dog lay by the door; neither moved.",
    "Visit https://example.org/a_b?c=1 or write to me@example.org.",
    "Naïve café owners in Zürich paid 50 € — or ‘less’.",
    "Yes.",
    "the the the the the the the",
]
CHINESE = [
    "今天天气很好，我们去公园散步吧。",
    "他在2019年买了一台MacBook Pro电脑！",
    "这部电影（2001年）非常有名；你看过吗？",
    "东京タワーは高い。",
    "好",
    "机器翻译的质量评估是一个长期存在的问题。",
]
KOREAN = [
    "류현진이 공을 던졌다.",
    "오늘 날씨가 좋아서, 우리는 공원에서 산책을 했다!",
    "그는 2019년에 컴퓨터 3대를 샀다.",
    "기계 번역의 품질을 평가하는 것은 어려운 문제이다.",
    "네.",
]


class Corpus(NamedTuple):
    """Two systems' outputs on the same rows, with as many references for each."""

    predictions: list[str]
    better: list[str]
    references: list[list[str]]


def _damaged(text: str, dice: random.Random, rate: float) -> str:
    parts = text.split(" ") if " " in text else list(text)
    joint = " " if " " in text else ""
    kept = [part for part in parts if dice.random() > rate]
    if len(kept) > 2 and dice.random() < 2 * rate:
        at = dice.randrange(len(kept) - 1)
        kept[at], kept[at + 1] = kept[at + 1], kept[at]
    if kept and dice.random() < rate:
        kept.insert(dice.randrange(len(kept)), dice.choice(parts))
    return joint.join(kept)


@functools.cache
def corpus(name: str) -> Corpus:
    """Return the corpus of a language; ``single`` is English with one reference of each row."""
    sentences, rows, references, seed = {
        "english": (ENGLISH, 60, 3, 1),
        "single": (ENGLISH, 60, 1, 2),
        "chinese": (CHINESE, 30, 2, 3),
        "korean": (KOREAN, 30, 2, 4),
    }[name]
    dice = random.Random(seed)
    sources = [dice.choice(sentences) for _ in range(rows)]
    return Corpus(
        [_damaged(source, dice, 0.25) for source in sources],
        [_damaged(source, dice, 0.15) for source in sources],
        [[source, *(_damaged(source, dice, 0.1) for _ in range(references - 1))] for source in sources],
    )


@pytest.fixture(scope="session")
def english() -> Corpus:
    return corpus("english")


@pytest.fixture
def sacrebleu(tmp_path: Path) -> Callable[..., str]:
    """Run ``python -m sacrebleu`` on a corpus and return what it prints."""

    def run(corpus: Corpus, *arguments: str, systems: tuple[str, ...] = ("predictions",)) -> str:
        references = []
        for number, stream in enumerate(zip(*corpus.references, strict=True)):
            references.append(_written(tmp_path / f"reference{number}", stream))
        outputs = [_written(tmp_path / system, getattr(corpus, system)) for system in systems]
        command = [sys.executable, "-m", "sacrebleu", *references, "-i", *outputs, "-w", "10", *arguments]
        # Its own variables would change the format and the seed.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SACREBLEU")}
        done = subprocess.run(
            command,
            env={**environment, "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def _written(path: Path, lines: tuple[str, ...] | list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)
