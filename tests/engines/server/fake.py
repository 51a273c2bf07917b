"""A server in plain Python for the tests of servers that a session starts; its faults are options.

It answers as vLLM does, from a model of bigrams over token ids: each token depends on the one before it.
"""

import argparse
import fcntl
import hashlib
import heapq
import itertools
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SIZE = 320  # tokens of the vocabulary
ROOM = 642


def logprobs(before: int, seed: str) -> list[float]:
    """Return the log-probabilities of all tokens after one."""
    drawn = random.Random(f"{seed} {before}")
    scores = [drawn.gauss(0, 3) for _ in range(SIZE)]
    total = math.log(sum(map(math.exp, scores)))
    return [score - total for score in scores]


class Model:
    def __init__(self, seed: str, block: int | None = None) -> None:
        self._seed, self._rows = seed, dict[int, list[float]]()
        self._block, self._read = block, set[tuple[int, ...]]()

    def row(self, before: int) -> list[float]:
        if before not in self._rows:
            self._rows[before] = logprobs(before, self._seed)
        return self._rows[before]

    def known(self, before: int, token: int, top: int) -> dict[str, Any]:
        row = self.row(before)
        best = heapq.nlargest(top, range(SIZE), key=row.__getitem__)
        return {str(each): {"logprob": row[each]} for each in {*best, token}}

    def recalled(self, ids: list[int]) -> int:
        """Return how many tokens are in whole blocks that an earlier request had too."""
        ends = range(self._block, len(ids), self._block) if self._block else ()
        found = max((end for end in ends if tuple(ids[:end]) in self._read), default=0)
        self._read |= {tuple(ids[:end]) for end in ends}
        return found

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = list(body["prompt"])
        read, drawn = len(ids), random.Random(body.get("seed"))
        for _ in range(body["max_tokens"]):
            row = self.row(ids[-1])
            temperature = body["temperature"]
            weights = [math.exp(score / temperature) for score in row] if temperature else []
            ids.append(drawn.choices(range(SIZE), weights)[0] if weights else row.index(max(row)))
        choice: dict[str, Any] = {"text": "", "finish_reason": "length", "token_ids": ids[read:]}
        if (top := body.get("prompt_logprobs")) is not None:
            choice["prompt_logprobs"] = [
                None,
                *(self.known(*pair, top) for pair in itertools.pairwise(ids[:read])),
            ]
            for at in range(1, self.recalled(ids[:read])):
                choice["prompt_logprobs"][at] = {str(ids[at]): {"logprob": 0.0}}
        return {"choices": [choice], "usage": {"prompt_tokens": read, "completion_tokens": len(ids) - read}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    options: argparse.Namespace
    model: Model
    asked = 0
    lock = threading.Lock()

    def do_GET(self) -> None:
        if self.path not in ("/health", "/v1/models"):
            self.send_error(404)
            return
        self.send({"data": [{"id": "tiny", "max_model_len": ROOM}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            Handler.asked += 1
        options, number = self.options, Handler.asked
        if number == options.hang_at:
            time.sleep(600)
        if number == options.wait_at:
            Path("asked").touch()
            while not Path("joined").exists():
                time.sleep(0.01)
        if number == options.die_at:
            print("no memory is left", flush=True)
            os._exit(7)
        if "messages" in body:
            with Path("chats.jsonl").open("a") as file:
                file.write(json.dumps(body) + "\n")
            message = {"role": "assistant", "reasoning_content": "hmm, a cat", "content": "the cat sat"}
            self.send({"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}})
        else:
            self.send(self.model.answer(body))

    def send(self, answer: dict[str, Any]) -> None:
        content = json.dumps({"model": "tiny", **answer} if "choices" in answer else answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--weights", help="file whose content decides the numbers")
    parser.add_argument("--load", type=float, default=0.0, help="seconds until it listens")
    parser.add_argument("--status", type=int, help="end at once")
    parser.add_argument("--never", action="store_true", help="never listen")
    parser.add_argument("--hang-at", type=int, help="answer no request from this one on")
    parser.add_argument("--die-at", type=int, help="end at this request")
    parser.add_argument("--wait-at", type=int, help="write the file asked at this request, and wait for joined")
    parser.add_argument("--share-port", action="store_true", help="let another process listen at the port too")
    parser.add_argument("--stubborn", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--children", action="store_true", help="start children, one in a session of its own")
    parser.add_argument("--print-env", action="append", default=[], help="print a variable")
    parser.add_argument("--api-key", help="print it")
    parser.add_argument("--recalls", type=int, help="give 0 for blocks of so many tokens that it has read before")
    parser.add_argument("--alone", help="file that is locked; end if another server has locked it")
    options = parser.parse_args()
    with Path("starts.txt").open("a") as file:
        file.write(f"{os.getpid()} {options.port}\n")
    if options.alone:
        alone = Path(options.alone).open("w")  # noqa: SIM115 - until the end
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.children:
        sleep = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        for apart in (False, True):
            child = subprocess.Popen([sys.executable, "-S", "-c", sleep], start_new_session=apart)
            with Path("starts.txt").open("a") as file:
                file.write(f"{child.pid}{' 0 apart' * apart}\n")
    print("loading", *range(30), sep="\n")
    for name in options.print_env:
        print("the secret is", os.environ[name])
    if options.api_key:
        print("the key is", options.api_key)
    sys.stdout.flush()
    if options.status is not None:
        sys.exit(options.status)
    if options.never:
        time.sleep(600)
    time.sleep(options.load)
    seed = hashlib.sha256(Path(options.weights).read_bytes()).hexdigest() if options.weights else ""
    Handler.options, Handler.model = options, Model(seed, options.recalls)
    http = ThreadingHTTPServer(("127.0.0.1", options.port), Handler, bind_and_activate=False)
    if options.share_port:
        http.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    http.server_bind()
    http.server_activate()
    Path("listens").touch()
    http.daemon_threads = True
    http.serve_forever()


if __name__ == "__main__":
    main()
