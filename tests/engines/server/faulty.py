"""An HTTP server whose answers a test may spoil: what real servers cannot be brought to do.

Its model is one of bigrams, or one of transformers.
"""

import functools
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from tests.engines.projects import CONTEXT

ROOM = CONTEXT + 2  # of prompt and text together
NAME = "tiny"
Answer = dict[str, Any]
# From the number of a request to `/completions`, its body and the right answer to what is sent: a mapping as JSON, text
# as HTML, a status with a mapping, or None to cut the connection.
Spoil = Callable[[int, Answer, Answer], Any]


class Bigrams:
    """Each token depends on the one before it."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        scores = np.random.default_rng(0).normal(size=(len(tokenizer), len(tokenizer))) * 3
        self.names_ids = False  # whether it names tokens by their ids where asked; their texts are not all different
        self.keeps = ROOM  # the last tokens of a prompt that it writes after, if not all
        self.end = -1  # the token that ends a text
        # What it draws from, shape ``[before, token]``, and what it says of that.
        self.logprobs = self.reported = normalized(scores)

    def after(self, ids: list[int]) -> Any:
        """Return the log-probabilities of the token after these, from which it draws, shape ``[tokens]``."""
        return self.logprobs[ids[-1]]

    def weighed(self, row: Any, ids: list[int], body: Answer) -> Any:
        return row

    def read(self, ids: list[int]) -> Any:
        """Return what it says of the tokens after each of these, shape ``[ids, tokens]``."""
        return self.reported[ids]

    def answer(self, body: Answer) -> Answer:
        prompt = body["prompt"]
        ids = self.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else list(prompt)
        read = len(ids)
        drawn, written_by = np.random.default_rng(body.get("seed")), []
        while len(ids) < read + body["max_tokens"] and (len(ids) == read or ids[-1] != self.end):
            written_by.append(self.after(ids[max(0, read - self.keeps) :]))
            row = self.weighed(written_by[-1], ids, body)
            if temperature := body["temperature"]:
                row = kept(row / temperature, body.get("top_k", 0), body.get("top_p", 1.0))
                row = row + drawn.gumbel(size=len(row))
            ids.append(int(row.argmax()))
        written = ids[read:]
        why = "stop" if written and written[-1] == self.end else "length"
        choice: Answer = {"index": 0, "text": self.tokenizer.decode(written), "finish_reason": why, "logprobs": None}
        if body.get("return_token_ids"):
            choice["token_ids"] = written
        if (top := body.get("prompt_logprobs")) is not None:
            choice["prompt_logprobs"] = [None, *known(self.read(ids[: read - 1]), ids[1:read], top)]
        elif body.get("logprobs") and not body.get("echo"):
            drawn_by = [float(row[token]) for row, token in zip(written_by, written, strict=True)]
            choice["logprobs"] = {"tokens": [], "token_logprobs": drawn_by, "top_logprobs": []}
        if body.get("echo"):
            rows = [None, *known(self.read(ids[:-1]), ids[1:], body["logprobs"])]
            by_id = self.names_ids and body.get("return_tokens_as_token_ids")
            name = "token_id:{}".format if by_id else lambda token: self.tokenizer.decode([int(token)])
            choice["logprobs"] = {
                "tokens": [name(token) for token in ids],
                "token_logprobs": [row and row[str(token)]["logprob"] for row, token in zip(rows, ids, strict=True)],
                "top_logprobs": [row and {name(key): one["logprob"] for key, one in row.items()} for row in rows],
            }
        usage = {"prompt_tokens": read, "completion_tokens": len(written), "total_tokens": len(ids)}
        return {"id": "cmpl-1", "object": "text_completion", "model": NAME, "choices": [choice], "usage": usage}


class Causal(Bigrams):
    """A causal model of transformers; `keeps` is as for `Bigrams`."""

    def __init__(self, model: Any, tokenizer: Any, keeps: int = ROOM) -> None:
        super().__init__(tokenizer)
        self.model, self.keeps = model.eval(), keeps

    def after(self, ids: list[int]) -> Any:
        return self.read(ids)[-1]

    def read(self, ids: list[int]) -> Any:
        import torch

        with torch.no_grad():
            return self.model(torch.tensor([ids])).logits[0].double().log_softmax(-1).numpy()


def kept(row: Any, top_k: int, top_p: float) -> Any:
    """Return what samples are drawn from: -inf for all but the likeliest tokens, as vLLM does."""
    order = np.argsort(-row)
    shares = np.exp(row[order] - row.max())
    before = np.cumsum(shares / shares.sum()) - shares / shares.sum()
    count = min(top_k or len(row), int((before < top_p).sum()))
    found = np.full(len(row), -np.inf)
    found[order[:count]] = row[order[:count]]
    return found


def known(rows: Any, tokens: list[int], top: int) -> list[Answer]:
    """Return what is told of each token: the likeliest ones in its place, and itself."""
    return [
        {str(each): {"logprob": float(row[each])} for each in {*np.argsort(-row)[:top].tolist(), token}}
        for row, token in zip(rows, tokens, strict=True)
    ]


def normalized(scores: Any) -> Any:
    return scores - np.log(np.exp(scores).sum(1, keepdims=True))


class FaultyServer:
    """A server on the loopback; `url` is its address, as an entry has it."""

    def __init__(self, tokenizer: Any) -> None:
        self.bigrams = Bigrams(tokenizer)
        self.bodies: list[Answer] = []  # of the requests to ``/completions``, in order
        self.headers: list[dict[str, str]] = []  # of all requests
        self.spoil: Spoil = lambda number, body, answer: answer
        self.models: Any = {"data": [{"id": NAME, "max_model_len": ROOM}]}
        self.most_at_once = self._at_once = 0  # requests that are answered
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, self))
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def scored(self) -> list[list[int]]:
        """The prompts, as token ids, whose likelihoods were asked for."""
        return [body["prompt"] for body in self.bodies if body.get("prompt_logprobs") == 1]

    @contextmanager
    def counted(self) -> Iterator[None]:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            yield
        finally:
            with self._lock:
                self._at_once -= 1

    def take(self, body: Answer) -> int:
        with self._lock:
            self.bodies.append(body)
            return len(self.bodies) - 1

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, server: FaultyServer, *args: Any) -> None:
        self.faulty = server
        super().__init__(*args)

    def do_GET(self) -> None:
        self.faulty.headers.append(dict(self.headers))
        self._send(self.faulty.models if self.path == "/v1/models" else (404, {"detail": "Not Found"}))

    def do_POST(self) -> None:
        self.faulty.headers.append(dict(self.headers))
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.faulty.counted():
            sent = self.faulty.spoil(self.faulty.take(body), body, self.faulty.bigrams.answer(body))
        self._send(sent)

    def _send(self, sent: Any) -> None:
        status, headers = 200, {}
        if isinstance(sent, tuple):
            status, sent, *more = sent
            headers = more[0] if more else {}
        if sent is None:
            self.close_connection = True
            return
        content = (sent if isinstance(sent, str) else json.dumps(sent)).encode()
        self.send_response(status)
        kind = "text/html" if isinstance(sent, str) else "application/json"
        for key, value in {"Content-Type": kind, "Content-Length": str(len(content)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


def first(answer: Answer) -> Answer:
    return answer["choices"][0]  # type: ignore[no-any-return]


def changed_values(change: Callable[[float], Any]) -> Spoil:
    def spoil(_: int, body: Answer, answer: Answer) -> Answer:
        for row in first(answer).get("prompt_logprobs") or []:
            for one in (row or {}).values():
                one["logprob"] = change(one["logprob"])
        if logprobs := first(answer)["logprobs"]:
            values = logprobs["token_logprobs"]
            logprobs["token_logprobs"] = [None if value is None else change(value) for value in values]
            rows = logprobs["top_logprobs"]
            logprobs["top_logprobs"] = [row and {key: change(one) for key, one in row.items()} for row in rows]
        return answer

    return spoil


def changed_rows(change: Callable[[list[Any]], list[Any]]) -> Spoil:
    """Spoils the lists of a prompt's log-probabilities."""

    def spoil(_: int, body: Answer, answer: Answer) -> Answer:
        if rows := first(answer).get("prompt_logprobs"):
            first(answer)["prompt_logprobs"] = change(rows)
        if logprobs := first(answer)["logprobs"]:
            first(answer)["logprobs"] = {key: change(values) for key, values in logprobs.items()}
        return answer

    return spoil


def without_prompt_logprobs(spoil: Spoil) -> Spoil:
    """As a server that gives likelihoods by echo alone, whose answers are spoilt so."""

    def spoiled(number: int, body: Answer, answer: Answer) -> Answer:
        first(answer).pop("prompt_logprobs", None)
        return spoil(number, body, answer)

    return spoiled


def half(value: float) -> float:
    return float(np.float16(value))


def slow(seconds: float) -> Spoil:
    def spoil(_: int, body: Answer, answer: Answer) -> Answer:
        time.sleep(seconds)
        return answer

    return spoil


def without_echo(_: int, body: Answer, answer: Answer) -> Answer:
    """As llama.cpp's own server: likelihoods of generated tokens only, in a shape of its own."""
    first(answer).pop("prompt_logprobs", None)
    first(answer)["logprobs"] = {"content": [{"id": 7, "token": "x", "logprob": -math.pi, "top_logprobs": []}]}
    return answer


def off_by_one(_: int, body: Answer, answer: Answer) -> Answer:
    """The likelihoods are those of the token behind each."""
    first(answer).pop("prompt_logprobs", None)
    if logprobs := first(answer)["logprobs"]:
        for key in ("token_logprobs", "top_logprobs"):
            logprobs[key] = [None, *logprobs[key][2:], logprobs[key][-1]]
    return answer


def without_tops(_: int, body: Answer, answer: Answer) -> Answer:
    """Only the likelihoods of the text's own tokens, which no draw can prove; here to base 2."""
    first(answer).pop("prompt_logprobs", None)
    if logprobs := first(answer)["logprobs"]:
        values = logprobs["token_logprobs"]
        logprobs |= {"token_logprobs": [value and value / math.log(2) for value in values], "top_logprobs": None}
    return answer


def constant(_: int, body: Answer, answer: Answer) -> Answer:
    """Each token has the same likelihood after any text."""
    rows = first(answer).get("prompt_logprobs") or []
    first(answer)["prompt_logprobs"] = [
        row and {"319": {"logprob": -1.2345678}, str(token): {"logprob": -math.pi - token / 1000}}
        for row, token in zip(rows, body["prompt"], strict=False)
    ]
    return echoless(answer)


def other_tokens(_: int, body: Answer, answer: Answer) -> Answer:
    """The likelihoods are of the tokens' neighbours in the vocabulary."""
    rows = first(answer).get("prompt_logprobs") or []
    first(answer)["prompt_logprobs"] = [
        row and {str(int(token) + 1000): one for token, one in row.items()} for row in rows
    ]
    return echoless(answer)


def echoless(answer: Answer) -> Answer:
    first(answer)["logprobs"] = None
    return answer
