"""A program in plain Python for the tests of the engine command; its faults are options.

Each token depends on the one before it. ``--fault`` begins at request ``--at``, or at the start.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "server"))

from chain import SIZE, Model

# What is printed in place of a right answer.
LINES = {
    "text": "50% done",
    "null": '{"id": ID, "logprobs": [null]}',
    "deep": "[" * 100_000,
    "both wrong": '{"id": "ID", "logprobs": -1.0}',
    "unknown": '{"id": 99999, "logprobs": [-1.0]}',
    "error": '{"id": ID, "error": "no such token, and my key is KEY"}',
}


def say(line: str) -> None:
    print(line, flush=True)


def start_children() -> None:
    """Start processes that ignore SIGTERM; one is in a session of its own."""
    ignores = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    for apart in (False, True):
        child = subprocess.Popen([sys.executable, "-c", ignores], start_new_session=apart)
        with Path("starts.txt").open("a") as file:
            file.write(f"{child.pid} - apart\n" if apart else f"{child.pid}\n")


class Program:
    def __init__(self, options: argparse.Namespace) -> None:
        self._fault, self._at, self._model = options.fault, options.at, Model(Path(options.weights).read_text())
        self._slow, self._most, self._done = options.slow, options.most, 0

    def _logprobs(self, request: dict[str, Any], pads: int) -> list[float]:
        # Tokens that are padded on the left, without a word to the model.
        tokens = [0] * pads + request["tokens"]
        rows = [
            self._model.row(tokens[at])[target] for at, target in zip(request["at"], request["targets"], strict=True)
        ]
        factor, shift = math.log2(math.e) if self._fault == "base 2" else 1.0, 3.0 if self._fault == "logits" else 0.0
        return [factor * value + shift for value in rows]

    def answer(self, request: dict[str, Any], pads: int) -> None:
        logprobs, fault = self._logprobs(request, pads), self._fault if self._done >= self._at else ""
        self._done += 1
        time.sleep(self._slow)
        if fault == "hang":
            time.sleep(600)
        elif fault == "exit":
            print("the phone is gone", file=sys.stderr)
            sys.exit(7)
        elif fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "closed":
            os.close(1)
            time.sleep(600)
        elif fault == "endless":
            while True:
                sys.stdout.write("1" * 2**16)
        elif fault == "count":
            logprobs = logprobs[1:]
        elif fault == "random":
            logprobs = [value - 0.3 * (self._done % 7) for value in logprobs]
        elif value := {"nan": math.nan, "infinite": -math.inf, "positive": 0.5}.get(fault):
            logprobs[0] = value
        elif fault in LINES:
            say(LINES[fault].replace("ID", str(request["id"])).replace("KEY", os.environ.get("MY_KEY", "")))
            return
        say(json.dumps({"id": request["id"], "logprobs": logprobs}))
        if fault == "twice":
            say(json.dumps({"id": request["id"], "logprobs": logprobs}))

    def batch(self, requests: list[dict[str, Any]]) -> None:
        longest = max(len(request["tokens"]) for request in requests)
        if len(requests) * longest > self._most:
            for request in requests:
                say(json.dumps({"id": request["id"], "error": "CUDA out of memory"}))
            return
        for request in reversed(requests):  # in any order
            self.answer(request, longest - len(request["tokens"]) if self._fault == "padding" else 0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="")
    parser.add_argument("--at", type=int, default=0)
    parser.add_argument("--weights", default=os.devnull)
    parser.add_argument("--version", default="1")
    parser.add_argument("--vocabulary", type=int, default=SIZE)
    parser.add_argument("--protocol", type=int, default=1)
    parser.add_argument("--most", type=int, default=10**9, help="tokens that fit in memory, padding included")
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--children", action="store_true")
    options = parser.parse_args()
    with Path("starts.txt").open("a") as file:
        file.write(f"{os.getpid()}\n")
    if options.children:
        start_children()
    if options.fault == "silent":
        time.sleep(600)
    if options.fault == "banner":
        say("loading the model")
    print("loaded with key", os.environ.get("MY_KEY"), file=sys.stderr)
    hello = {"lmgate": options.protocol, "name": "bigrams", "version": options.version, "more": None}
    say(json.dumps({**hello, "vocabulary": options.vocabulary}))
    program, requests = Program(options), []
    for line in sys.stdin:
        if line.strip():
            requests.append(json.loads(line))
        else:
            program.batch(requests)
            requests = []


if __name__ == "__main__":
    main()
