"""A server whose texts a fault may break, through a proxy on the loopback that changes requests."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from pytest_lmgate.engines.base import Runner
from pytest_lmgate.engines.server import ServerRunner
from pytest_lmgate.tools.drill.planting import SEED, Broken, NotPlanted

_SENT, _RETURNED = ("Authorization", "Content-Type"), ("Content-Type", "Retry-After", "Location")


class InServer(Broken):
    """A server of which only requests can be changed."""

    out_of_reach = "its server shows nothing of the model, of which only texts can be broken"

    def __init__(self, runner: ServerRunner) -> None:
        super().__init__(runner.tokenizer)
        self._runner = runner
        self._begun: Callable[[list[int]], list[int]] | None = None
        self._template: Callable[..., str] | None = None

    def begin(self, change: Callable[[list[int]], list[int]]) -> None:
        if self._runner.settings.chat:
            raise NotPlanted("its server makes the tokens of chats")
        with self._runner.measuring():
            if not self._runner.reads_ids():
                raise NotPlanted("its server takes texts, and begins them itself")
        bos = self.tokenizer.bos
        self._begun = lambda ids: change(ids) if ids[:1] == [bos] else ids

    def write_chats(self, template: Callable[..., str]) -> None:
        if not self._runner.settings.chat:
            return super().write_chats(template)
        self._template = template

    def decode(self, **fields: Any) -> None:
        with self._runner.measuring():
            if refusal := self._runner.refusal(**fields):
                raise NotPlanted(f"its server takes no {', '.join(fields)}: {refusal}")
        super().decode(**fields)

    def changed(self, path: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return a request as the broken server reads it."""
        body = {**body, **self.decoding}
        if self.decoding:
            body.setdefault("seed", SEED)
        if body.get("ignore_eos"):
            body.pop("stop", None)
        if self._begun is not None and isinstance(body.get("prompt"), str):
            body["prompt"] = list(self.tokenizer.encode(body["prompt"], True))
        if isinstance(ids := body.get("prompt"), list):
            ids = ids if self._begun is None else self._begun(ids)
            body["prompt"] = ids[min(self.cut, len(ids) - 1) :]
        elif isinstance(text := body.get("prompt"), str):
            body["prompt"] = self._less(text)
        if messages := body.get("messages"):
            body["messages"] = [{**messages[0], "content": self._less(messages[0]["content"])}, *messages[1:]]
            if self._template is not None:
                body["prompt"] = self._template(body.pop("messages"))
                path = path.replace("/chat/completions", "/completions")
        return path, body

    def _less(self, text: str) -> str:
        """Return a text without its first tokens, and with one token at least."""
        ids = list(self.tokenizer.encode(text, False)) if self.cut else []
        less = self.tokenizer.text(ids[min(self.cut, len(ids) - 1) :]) if ids else text
        return text if less is None else less

    def answered(self, answer: bytes) -> bytes:
        """Return an answer as the gate expects it: to a chat that was sent as a text, with a message."""
        if self._template is None:
            return answer
        content = json.loads(answer)
        for choice in content.get("choices", ()):
            choice["message"] = {"role": "assistant", "content": choice.pop("text", None)}
        return json.dumps(content).encode()

    def open(self) -> Runner:
        runner, handler = self._runner, type("Handler", (_Handler,), {"broken": self, "server_of": self._runner})
        proxy = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
        if not runner.settings.chat:
            with runner.measuring():
                runner.reads_ids()
        made = runner.through(f"http://127.0.0.1:{proxy.server_port}{urlsplit(runner.settings.url).path}")
        plain, close = made.measuring, made.close

        @contextlib.contextmanager
        def measuring() -> Iterator[None]:
            with runner.measuring(), plain():  # a server that the session started runs
                yield

        def closed() -> None:
            close()
            proxy.shutdown()
            proxy.server_close()

        made.measuring, made.close = measuring, closed  # type: ignore[method-assign]
        made.tokenizer = self.tokenizer
        return made


class _Handler(BaseHTTPRequestHandler):
    """Passes requests on, changed, and answers back."""

    protocol_version = "HTTP/1.1"
    broken: InServer
    server_of: ServerRunner

    def do_GET(self) -> None:
        self._pass(self.path, None)

    def do_POST(self) -> None:
        path, body = self.broken.changed(self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._pass(path, json.dumps(body).encode())

    def _pass(self, path: str, body: bytes | None) -> None:
        settings = self.server_of.settings
        origin, no_proxies = urlsplit(settings.url), [urllib.request.ProxyHandler({})] if settings.is_local else []
        headers = {name: self.headers[name] for name in _SENT if self.headers[name] is not None}
        asked = urllib.request.Request(f"{origin.scheme}://{origin.netloc}{path}", body, headers)
        try:
            opener = urllib.request.build_opener(_Kept, *no_proxies)
            with opener.open(asked, timeout=settings.timeout) as answer:
                status, given, content = answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            status, given, content = error.code, error.headers, error.read()
        except OSError as error:
            status, given, content = 502, {}, str(error).encode()
        content = self.broken.answered(content) if body is not None and status == 200 else content
        self.send_response(status)
        for name in _RETURNED:
            if given.get(name) is not None:
                self.send_header(name, given[name])
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


class _Kept(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Leave a redirection to the client, as without the proxy."""
