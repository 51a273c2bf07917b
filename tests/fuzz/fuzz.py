"""Damages files at random and reads them: the answer is a value or one of the package's own errors.

python tests/fuzz/fuzz.py --cases 10000 --seed 1

* **lmgate.yaml**, as ``lmgate check`` reads it: models, datasets and gates.
* **The baseline**, **records of the history** and **JSON reports**.
* **The cache**: entries, digests of files and unfinished measurements. A file that was only damaged must change no
  value; one that was damaged and sealed again, as a forger could, may be believed, but must not break anything.

Nothing is caught but `LmgateError`. A case that fails is written to a file, named with what to run again.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from pytest_lmgate.cache.files import read_sealed, write_sealed  # noqa: E402
from pytest_lmgate.cli.project import _read as check_yaml  # noqa: E402
from pytest_lmgate.errors import LmgateError  # noqa: E402
from pytest_lmgate.judge.baseline import Baselines, parse_baseline  # noqa: E402
from pytest_lmgate.judge.judge import Judge  # noqa: E402
from pytest_lmgate.judge.result import read_results  # noqa: E402
from pytest_lmgate.measure.evaluator import Evaluator  # noqa: E402
from pytest_lmgate.settings.file import load_project, read_gates  # noqa: E402
from pytest_lmgate.settings.session import Options  # noqa: E402
from tests.engines.fair_die import Dice  # noqa: E402

YAML = """\
defaults: {device: cpu, dtype: float32, batch_size: auto}
models:
  six: {path: six.die, batch_size: 4}
  eight: {backend: fair-die, path: eight.die, revision: v1}
  tuned: {hub: org/name, revision: 1f2e3d, adapter: adapters/tuned, load: {device_map: auto}}
  served: {server: "http://localhost:8000/v1", model: my-model, tokenizer: models/fp16, key: MY_KEY}
datasets:
  text: {path: text.txt}
  news: {path: news.jsonl, source: article, references: [summary], cluster: kind, tags: [kind]}
  quiz: {path: quiz.jsonl, question: q, choices: options, answer: label}
gates:
  - ppl_max: {model: six, dataset: text, limit: 16.5, stride: 32}
  - bleu_min: {model: six, dataset: news, limit: 20, max_new_tokens: 8}
  - accuracy_min: {model: six, dataset: quiz, limit: 0.5, confidence: 0.95}
  - no_regression: {metric: ppl, model: six, dataset: text, tolerance: 1%}
  - no_regression: {metric: bleu, model: six, dataset: news, tolerance: 1%, against: eight}
"""
# What is put in the place of something else, in text and in YAML.
PIECES = [
    *("null", "~", "{}", "[]", "[[]]", "-", "|", ">", "'", "{", "}", "[", "]", ",", "#", "%", "@", "`", "1%", "0x1F"),
    *("true", "no", "2026-01-01", "nan", ".nan", ".inf", "-1", "0", "-0.0", "1e999", "1_000"),
    *("- -", ": ", "? ", "&a ", "*a", "<<: *a", "!!python/object:os.system", '"', "9" * 400, "a" * 5000),
    *("\t", "\r", "\0", "\ufeff", "\u202e", "\x1b[31m", "\ud7ff", "é", "[" * 3000, '{"a":' * 3000),
    *("ppl_max", "gates:", "models:", "model: six", "against", "../../etc/passwd"),
]


def damaged(data: bytes, chance: random.Random) -> bytes:
    """A copy of a file with one to four places changed: bytes, pieces, lines, numbers, or its end cut off."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        data = chance.choice((_other, _other, _other, _line, _number, _cut))(data, chance)
    return data


def _other(data: bytes, chance: random.Random) -> bytes:
    """Something else in the place of some bytes, nothing, or the same twice."""
    start = chance.randrange(len(data) + 1)
    end = min(len(data), start + chance.choice((0, 1, 1, 2, 8, 64)))
    piece = chance.choice(PIECES).encode("utf-8", "surrogatepass")
    other = chance.choice((b"", chance.randbytes(end - start), piece, piece, 2 * data[start:end]))
    return data[:start] + other + data[end:]


def _line(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    taken = lines.pop(chance.randrange(len(lines)))
    if chance.random() < 0.5:
        lines.insert(chance.randrange(len(lines) + 1), b" " * chance.randrange(4) + taken)
    return b"".join(lines)


def _number(data: bytes, chance: random.Random) -> bytes:
    digits = [index for index, byte in enumerate(data) if chr(byte).isdigit()]
    if not digits:
        return data
    at = chance.choice(digits)
    other = chance.choice((b"-1", b"0", b"1e308", b"NaN", b"Infinity", b'"x"', b"null", b"{}"))
    return data[:at] + other + data[at + 1 :]


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


@dataclasses.dataclass
class Project:
    """A project of dice whose cache, baseline and values are known."""

    folder: Path

    def __post_init__(self) -> None:
        chance = random.Random(0)
        for name, sides in (("six", 6), ("eight", 8)):
            (self.folder / f"{name}.die").write_text(json.dumps({"sides": sides}))
        (self.folder / "text.txt").write_text("".join(chance.choices("abcd ", k=640)))
        news = [{"article": f"number {row}", "summary": f"number {row}", "kind": row % 3} for row in range(40)]
        quiz = [{"q": f"ask {row}", "options": ["long one", "no"], "label": 1} for row in range(40)]
        for name, rows in (("news", news), ("quiz", quiz)):
            (self.folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (self.folder / "lmgate.yaml").write_text(YAML)
        pytest = [sys.executable, "-m", "pytest", "-p", "tests.engines.fair_die", "--rootdir=.", "--lmgate-cache=cache"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        for options in (["--lmgate-update"], ["--lmgate-report", "json:report.json", "--lmgate-history", "runs"]):
            subprocess.run([*pytest, *options], cwd=self.folder, env=env, capture_output=True, check=False)
        (self.folder / "damaged").mkdir()
        self.files = {
            "yaml": self.folder / "lmgate.yaml",
            "baseline": self.folder / "lmgate-baseline.json",
            "report": self.folder / "report.json",
            "record": next((self.folder / "runs").iterdir()),
        }
        files = (self.folder / "cache").rglob("*")
        self.entries = [file for file in files if file.is_file() and file.suffix != ".lock"]
        self.values = self.measured()

    def measured(self) -> dict[str, float]:
        """The values that a new session gets for all gates."""
        options, values = Options(cache=self.folder / "cache"), {}
        evaluator = Evaluator(load_project(self.folder), options, users_backends={"fair-die": Dice()})
        judge = Judge(evaluator, options, Baselines(self.folder / "lmgate-baseline.json"))
        for entry in read_gates(self.folder / "lmgate.yaml")[0]:
            gate = entry.gate
            verdict, unexpected = judge.judge(judge.evaluator.bind_gate(gate), gate.label, gate.label)
            if unexpected is not None:
                raise unexpected
            values[gate.label] = math.nan if verdict.value is None else verdict.value
        return values


def read_yaml(project: Project, data: bytes) -> None:
    """As ``lmgate check`` reads it."""
    file = project.folder / "damaged" / "lmgate.yaml"
    file.write_bytes(data)
    with contextlib.suppress(LmgateError):
        check_yaml(file)


def read_baseline(_: Project, data: bytes) -> None:
    """As a session reads it, once it is text."""
    with contextlib.suppress(UnicodeDecodeError):
        parse_baseline(data.decode("utf-8-sig"), "lmgate-baseline.json")


def read_cache(project: Project, file: Path, chance: random.Random) -> None:
    """Damage a file of the cache, measure, and compare the values; then put the file back."""
    before = file.read_bytes()
    forged = chance.random() < 0.5 and before.startswith(b"LMGATE1")
    try:
        if forged:
            write_sealed(file, damaged(read_sealed(file), chance))
        else:
            file.write_bytes(damaged(before, chance))
        with contextlib.suppress(LmgateError):
            values = project.measured()
            if not forged and values != project.values:
                raise AssertionError(f"a damaged file changed a value: {values} in place of {project.values}")
    finally:
        file.write_bytes(before)


READERS: dict[str, Callable[[Project, bytes], object]] = {
    "yaml": read_yaml,
    "baseline": read_baseline,
    "report": lambda _, data: read_results(data, "report.json"),
    "record": lambda _, data: read_results(data, "record.json"),
}


def run(project: Project, number: int, seed: int) -> tuple[str, bytes, Exception | None]:
    """One case by its number: what was read, its bytes, and what went wrong."""
    chance = random.Random(f"{seed}/{number}")
    kind = (*READERS, "cache")[number % (len(READERS) + 1)]
    file = chance.choice(project.entries) if kind == "cache" else project.files[kind]
    data = file.read_bytes()
    try:
        if kind == "cache":
            read_cache(project, file, chance)
        else:
            READERS[kind](project, data := damaged(data, chance))
    except LmgateError:
        pass
    except Exception as error:
        return kind, data, error
    return kind, data, None


def main() -> int:
    """Run the cases; the exit code is 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    started, failures = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder))
        print(f"{len(project.entries)} files of the cache, {len(project.values)} gates")
        for number in range(asked.first, asked.first + asked.cases):
            kind, data, error = run(project, number, asked.seed)
            if error is not None:
                failures += 1
                kept = Path(tempfile.gettempdir()) / f"lmgate-fuzz-{asked.seed}-{number}-{kind}"
                kept.write_bytes(data)
                print(f"case {number}: {kind}: {type(error).__name__}: {str(error)[:300]}; kept as {kept}")
                print("".join(traceback.format_exception(error)[-3:]))
                print(f"again: python tests/fuzz/fuzz.py --seed {asked.seed} --first {number} --cases 1")
    print(f"{asked.cases} cases, {failures} failed, {time.monotonic() - started:.0f} s")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
