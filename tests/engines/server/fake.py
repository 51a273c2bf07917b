"""A server in plain Python for the tests of servers that a session starts; its faults are options.

It answers as vLLM does, from a model of bigrams over token ids: each token depends on the one before it.
"""

import argparse
import fcntl
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from chain import Model

ROOM = 642


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
