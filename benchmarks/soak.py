"""Runs a suite of 50 gates again and again, harms a third of the runs, and checks what is left.

python benchmarks/soak.py --runs 200

A worker or the controller is killed, terminated or interrupted. Before each run some entries of the cache are removed,
so that there is something to measure. The models are fair dice of known perplexity, which take a while. After each run:

* a verdict that was given is the right one, a gate that was lost is an error, and a green run has all 50 gates;
* a run that nobody killed has all verdicts, within two minutes: no lock of a dead process blocks it;
* at the end `lmgate cache verify` finds every entry whole.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

ENGINE = """
import json, math, time
import numpy as np
from pytest_lmgate.engines.base import Backend, Model, Runner
from pytest_lmgate.windows.tokens import TokenizerFacts


class SlowDie(Runner):
    is_tried = True
    tokenizer = TokenizerFacts(lambda text, _: [ord(letter) % 4 for letter in text])

    def __init__(self, sides):
        self.sides = sides

    def score(self, requests):
        time.sleep(0.02)
        return [np.full(len(each.targets), math.log(self.sides)) for each in requests]


class Dice(Backend):
    name, suffixes = "slow-die", (".die",)

    def describe(self, entry):
        file = entry.path(entry.spec.path)
        return Model(
            entry.name,
            lambda: SlowDie(json.loads(file.read_bytes())["sides"]),
            context=64,
            content={"die": entry.digest(file)},
            runtime={},
            offers=frozenset({"score"}),
        )


def pytest_lmgate_backends():
    return [Dice()]
"""
MODELS, TEXTS = 5, 10
SIGNALS = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM, "interrupt": signal.SIGINT}
LONGEST = 120.0


@dataclasses.dataclass(frozen=True)
class Run:
    """What was done to a run, and what it left."""

    harm: str
    code: int
    wrong: tuple[str, ...]


def make_project(folder: Path, chance: random.Random) -> None:
    """Dice with 2 to 6 sides and ten texts; two suites of all pairs, one of which must pass."""
    (folder / "conftest.py").write_text(ENGINE)
    lines = ["models:"]
    for sides in range(2, 2 + MODELS):
        (folder / f"{sides}.die").write_text(json.dumps({"sides": sides}))
        lines.append(f"  die{sides}: {{path: {sides}.die, batch_size: 2}}")
    lines.append("datasets:")
    for text in range(TEXTS):
        (folder / f"text{text}.txt").write_text("".join(chance.choices("abcd ", k=600)))
        lines.append(f"  text{text}: {{path: text{text}.txt}}")
    (folder / "lmgate.yaml").write_text("\n".join(lines) + "\n")
    for suite, margin in (("green", 0.5), ("red", -0.5)):
        gates = [
            f"  - ppl_max: {{model: die{sides}, dataset: text{text}, limit: {sides + (margin if text == 0 else 0.5)}}}"
            for sides in range(2, 2 + MODELS)
            for text in range(TEXTS)
        ]
        where = folder / suite
        where.mkdir()
        (where / "lmgate.yaml").write_text(
            "\n".join(lines).replace("path: ", "path: ../") + "\ngates:\n" + "\n".join(gates) + "\n"
        )


def run(folder: Path, suite: str, harm: str, chance: random.Random) -> Run:
    """One run, harmed or not, and what is wrong with what it left."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-n", "2", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    process = subprocess.Popen(
        [*command, f"{suite}/lmgate.yaml", f"--lmgate-cache={folder / 'cache'}", "--lmgate-report", f"json:{report}"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    started = time.monotonic()
    if harm:
        _harm(process, harm, chance)
    try:
        code = process.wait(LONGEST)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return Run(harm, -1, (f"still running after {time.monotonic() - started:.0f} s",))
    finally:
        for child in psutil.process_iter():
            if f"{folder}" in " ".join(_command(child)) and child.pid != os.getpid():
                child.kill()
    return Run(harm, code, tuple(_wrong(report, suite, harm, code)))


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _harm(process: subprocess.Popen[bytes], harm: str, chance: random.Random) -> None:
    how, _, whom = harm.partition(" ")
    time.sleep(chance.uniform(0.5, 12))
    try:
        workers = psutil.Process(process.pid).children()
        target = chance.choice(workers) if whom == "worker" and workers else psutil.Process(process.pid)
        target.send_signal(SIGNALS[how])
    except psutil.NoSuchProcess:
        pass


def _wrong(report: Path, suite: str, harm: str, code: int) -> list[str]:
    gates = MODELS * TEXTS
    verdicts = {gate["id"]: gate for gate in json.loads(report.read_text())["gates"]} if report.exists() else {}
    wrong = []
    for name, gate in verdicts.items():
        fails = suite == "red" and "-text0]" in name
        right = "fail" if fails else "pass"
        if gate["verdict"] not in (right, *(["error"] if harm else [])):
            wrong.append(f"{name}: {gate['verdict']} instead of {right}")
    if code == 0 and (suite == "red" or Counter(g["verdict"] for g in verdicts.values())["pass"] != gates):
        wrong.append(f"green with {len(verdicts)} gates of {gates}")
    if not harm and (code != (suite == "red") or len(verdicts) != gates):
        wrong.append(f"exit code {code} with {len(verdicts)} verdicts, and nobody harmed it")
    return wrong


def main() -> int:
    """Run them all and print a table; the exit code is 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        make_project(folder, chance)
        for number in range(asked.runs):
            for entry in list((folder / "cache").rglob("*.lmgate")):
                if chance.random() < 0.3:
                    entry.unlink()
            harm = (
                f"{chance.choice(list(SIGNALS))} {chance.choice(('worker', 'controller'))}" if number % 3 == 2 else ""
            )
            runs.append(run(folder, chance.choice(("green", "red")), harm, chance))
            print(f"\r{number + 1} of {asked.runs} runs", end="", file=sys.stderr, flush=True)
            for line in runs[-1].wrong:
                print(f"run {number} ({harm or 'not harmed'}): {line}", flush=True)
        verified = subprocess.run(
            [sys.executable, "-m", "pytest_lmgate.cli", "cache", "verify", "--cache", str(folder / "cache")],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    print(f"{'harm':<22} {'runs':>4} {'exit codes':<30} wrong")
    for harm in sorted({each.harm for each in runs}):
        those = [each for each in runs if each.harm == harm]
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(Counter(each.code for each in those).items()))
        print(f"{harm or 'none':<22} {len(those):>4} {codes:<30} {sum(len(each.wrong) for each in those)}")
    print(f"lmgate cache verify: exit code {verified.returncode}: {(verified.stdout + verified.stderr).strip()}")
    return 1 if verified.returncode or any(each.wrong for each in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
