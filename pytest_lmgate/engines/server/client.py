"""A server's settings and the client that asks it: it retries where that may help, and returns JSON or one clear error.

Only this module imports httpx2.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from pytest_lmgate.engines.base import LoadOption, ModelEntry
from pytest_lmgate.errors import ConfigError, EngineError, ModelError, UnreliableError, escape_controls, nearest

# A server that is busy or starts answers so; the same request may succeed later.
_LATER = (408, 425, 429, 502, 503, 504)
# The first wait in seconds, which doubles each time, and the longest that a server may ask for.
_WAIT, _LONGEST_WAIT = 0.25, 300.0
_SHOWN = 160
_OPTIONS = {
    "concurrency": LoadOption(int, 1), "timeout": LoadOption(int, 1), "retries": LoadOption(int, 0),
    "context": LoadOption(int, 8), "chat": LoadOption(bool), "reasoning_effort": LoadOption(str),
}  # fmt: skip
_DEFAULTS = {
    "concurrency": 8, "timeout": 60, "retries": 5, "context": None, "chat": False, "reasoning_effort": None,
}  # fmt: skip
_LOOPBACK = ("localhost", "::1")


class BadAnswer(EngineError):
    """The server's answer is malformed, or a refusal."""


class WrongNumbers(BadAnswer, UnreliableError):
    """The likelihoods in an answer are impossible, or contradict earlier answers."""


class Watched(Protocol):
    """A server that this session started."""

    @property
    def has_ended(self) -> bool: ...
    def why(self) -> str: ...  # says how it ended or that it runs, with the end of its log
    def hidden(self, text: str) -> str: ...  # removes secrets from a text


def hide(text: str, secrets: Iterable[str | None], mask: Callable[[str], str] = lambda _: "***") -> str:
    """Replace secrets in a text by what `mask` makes of each, the longest first."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, mask(secret))
    return text


@dataclass(frozen=True)
class ServerSettings:
    """A server and how to talk to it."""

    url: str  # its address without user name and password; empty for a server that is not started yet
    model: str  # its name for the model
    # Environment variable that holds the key; None without one. Nothing here holds the key itself, so that it appears
    # in no message, file or traceback.
    variable: str | None
    concurrency: int  # requests that this process may have on their way at once, its share of those of all workers
    timeout: int  # seconds that an answer may take
    retries: int  # how often a request that failed is sent again
    context: int | None  # tokens that prompt and text may have together; None asks the server
    chat: bool  # whether chats are sent as messages, which the server puts into a template of its own
    reasoning_effort: str | None  # passed on with a chat; None for the server's own
    credentials: tuple[str, str] | None = field(repr=False)  # user name and password of the address

    @classmethod
    def of(cls, entry: ModelEntry) -> ServerSettings:
        spec, where = entry.spec, f"models.{entry.name}"
        if not spec.server:
            raise ConfigError(f"{where}: the engine server needs server:, an address as in http://localhost:8000/v1")
        if not spec.model:
            raise ConfigError(
                f"{where}.model: expected the server's name for the model, as GET {{server}}/models lists it"
            )
        address = _split(spec.server, where) if isinstance(spec.server, str) else SplitResult("", "", "", "", "")
        user = (unquote(address.username), unquote(address.password or "")) if address.username is not None else None
        if user and spec.key:
            raise ConfigError(f"{where}.key: the address under server: has a user name already; leave out one of them")
        if spec.key is not None:
            _require_key(spec.key, where)
        host = address.netloc.rpartition("@")[2]
        url = address._replace(netloc=host).geturl().rstrip("/")
        options: dict[str, Any] = {**_DEFAULTS, **entry.load_options("a server", _OPTIONS)}
        if options["reasoning_effort"] is not None and not options["chat"]:
            raise ConfigError(f"{where}.load.reasoning_effort: only a chat has it: also set chat: true")
        options["concurrency"] = max(1, options["concurrency"] // entry.workers)
        return cls(url, spec.model, spec.key, **options, credentials=user)

    @property
    def is_local(self) -> bool:
        host = urlsplit(self.url).hostname or ""
        return host in _LOOPBACK or host.endswith(".localhost") or host.startswith("127.")

    @property
    def key(self) -> str | None:
        return None if self.variable is None else os.environ.get(self.variable, "")

    def hidden(self, text: str) -> str:
        """Remove the key and the password from a text, since a server may repeat them."""
        return hide(text, (self.key, self.credentials and self.credentials[1]))


def _split(written: str, where: str) -> SplitResult:
    try:
        address = urlsplit(written)
        is_valid = address.scheme in ("http", "https") and bool(address.hostname) and (address.port or 1) > 0
    except ValueError:
        is_valid = False
    if not is_valid or address.query or address.fragment:
        # A query or fragment may be a secret; a user name and password come before an @.
        address_alone, *rest = re.split(r"[?#]", written, maxsplit=1)
        shown = "***" if any("@" in segment for segment in rest) else address_alone.rpartition("@")[2]
        raise ConfigError(
            f"{where}.server: expected an address as in http://localhost:8000/v1, without ? and #, got {shown!r}"
        )
    return address


def _require_key(variable: str, where: str) -> None:
    key = os.environ.get(variable)
    if not key:
        state = "not set" if key is None else "empty"
        raise ConfigError(
            f"{where}.key: the environment variable {variable!r} is {state}; set it to the server's key, or leave key: "
            "out for a server without one"
        )
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(
            f"{where}.key: the environment variable {variable!r} contains white space or non-ASCII characters; set it "
            "again"
        )


class Client:
    """A server of one model; several threads may ask at once. `process` is the server if this session started it."""

    def __init__(self, name: str, settings: ServerSettings, process: Watched | None = None) -> None:
        try:
            import httpx2
        except ImportError as error:
            raise ModelError(
                f"model {name!r}: a server needs httpx2, which cannot be imported ({error}): "
                "pip install 'pytest-lmgate[server]'"
            ) from error
        self.name, self.settings, self._failure, self._process = name, settings, httpx2.RequestError, process

        def signed(request: httpx2.Request) -> httpx2.Request:
            request.headers["Authorization"] = f"Bearer {settings.key}"
            return request

        self._http = httpx2.Client(
            auth=signed if settings.variable else settings.credentials,
            timeout=settings.timeout,
            limits=httpx2.Limits(max_connections=settings.concurrency, max_keepalive_connections=settings.concurrency),
            # A proxy of the environment does not reach this machine.
            trust_env=not settings.is_local,
        )
        # Connections that are left to the garbage collector are warnings, which fail a session under -W error.
        weakref.finalize(self, self._http.close)

    def completion(self, body: Mapping[str, Any], *, tries: bool = False) -> dict[str, Any]:
        """Return the answer of ``/completions``, or to messages of ``/chat/completions``; see `ask`."""
        path = "/chat/completions" if "messages" in body else "/completions"
        try:
            answer = self.ask(path, {"model": self.settings.model, **body}, tries=tries)
        except BadAnswer as error:
            if "HTTP 404" not in (reason := self.reason(error)) or self.settings.model not in reason:
                raise
            self.served_context()  # raises an error that names the models, if the server lists them
            unknown = f"it has no model {self.settings.model!r} ({reason}): check models.{self.name}.model"
            raise EngineError(f"{self._about}{unknown}") from error
        choices = answer.get("choices")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise self.wrong(f"expected one completion under choices, got {_short(json.dumps(answer))}")
        wanted, named = self.settings.model, answer.get("model")
        # Some servers add the version, or the date of it.
        if isinstance(named, str) and not re.fullmatch(rf"{re.escape(wanted)}([-:@]\d.*)?", named):
            raise self.wrong(
                f"it answers as the model {named!r}: expected {wanted!r}; check models.{self.name}.model, and whether "
                "another model replaced it"
            )
        return answer

    def served_context(self) -> int | None:
        """Return the model's context if the server gives it; `ModelError` if the server has no such model."""
        try:
            answer = self.ask("/models")
        except BadAnswer as error:
            if "HTTP 404" in str(error) or "HTTP 405" in str(error):
                return None  # the first request tells whether the server knows the model
            raise
        listed = answer.get("data")
        by_id = (
            {entry.get("id"): entry for entry in listed if isinstance(entry, dict)} if isinstance(listed, list) else {}
        )
        if (wanted := self.settings.model) not in by_id:
            names = [str(name) for name in by_id]
            raise ModelError(
                f"model {self.name!r}: the server {self.settings.url} has no model {wanted!r}{nearest(wanted, names)}; "
                f"it has {', '.join(names) or 'none'}: check models.{self.name}.model"
            )
        context = by_id[wanted].get("max_model_len")
        return context if isinstance(context, int) and context > 0 else None

    def wrong(self, problem: str, kind: type[BadAnswer] = BadAnswer) -> BadAnswer:
        return kind(f"{self._about}{(self._process or self.settings).hidden(problem)}")

    def problem_at(self, url: str, timeout: float) -> str:
        """GET an address once, and return why it is not answered; empty where it is."""
        try:
            answer = self._http.request("GET", url, timeout=timeout)
        except self._failure as error:
            return f"{type(error).__name__}: {error}".rstrip(": .")
        # A server that asks for a key is ready too.
        return "" if answer.is_success or answer.status_code in (401, 403) else f"HTTP {answer.status_code}"

    def reason(self, error: Exception) -> str:
        """Return an error's message without the names of model and server."""
        return str(error).removeprefix(escape_controls(self._about))

    @property
    def _about(self) -> str:
        return f"model {self.name!r}: the server {self.settings.url}: "

    def close(self) -> None:
        self._http.close()

    def ask(self, path: str, body: Mapping[str, Any] | None = None, *, tries: bool = False) -> dict[str, Any]:
        """POST a body or GET, with retries and growing waits if the server is busy or cannot be reached.

        If it `tries` what the server may be unable to do, an internal error is retried only once. A refusal is a
        `BadAnswer`.
        """
        url, settings = self.settings.url + path, self.settings
        for attempt in range(settings.retries + 1):
            wait, refusal = _WAIT * 2**attempt * random.uniform(0.75, 1.25), False
            try:
                answer = self._http.request("GET" if body is None else "POST", url, json=body)
            except self._failure as error:
                problem = f"{type(error).__name__}: {error}".rstrip(": .")
            else:
                if answer.is_success:
                    return self._json(answer)
                problem = self._problem(answer)
                refusal = answer.status_code not in _LATER
                if answer.status_code < 500 and refusal:
                    raise self.wrong(problem)
                wait = max(wait, _retry_after(answer.headers.get("Retry-After")))
            has_ended = self._process is not None and self._process.has_ended
            is_last = attempt == settings.retries or (tries and refusal and attempt == 1) or wait > _LONGEST_WAIT
            if has_ended or is_last:
                break
            time.sleep(wait)
        if refusal and not has_ended:
            raise self.wrong(f"{problem} ({_times(attempt + 1)})")
        later = f" and asks for a wait of {wait:,.0f} s" if wait > _LONGEST_WAIT else ""
        failed = self.wrong(
            f"{problem}{later} ({_times(attempt + 1)}, up to {settings.timeout} s each); check that it runs, and see "
            f"load: {{retries, timeout, concurrency}} of models.{self.name}"
        )
        raise EngineError(f"{failed}; {self._process.why()}" if self._process is not None else str(failed))

    def _json(self, answer: Any) -> dict[str, Any]:
        try:
            content = json.loads(answer.content)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            kind = answer.headers.get("Content-Type", "no content type")
            raise self.wrong(
                f"expected a JSON object, got {kind} that begins {_short(answer.text)!r}; check the address: most end "
                "in /v1"
            )
        return content

    def _problem(self, answer: Any) -> str:
        try:
            reply: Any = json.loads(answer.content)
        except ValueError:
            reply = answer.text
        for key in ("error", "message", "detail"):
            reply = reply.get(key, reply) if isinstance(reply, dict) else reply
        hint = ""
        if answer.status_code in (401, 403):
            hint = f"; check the key in {self.settings.variable}" if self.settings.variable else "; it may need a key:"
        if answer.is_redirect:
            hint = f"; it moved to {answer.headers.get('Location')}: check models.{self.name}.server"
        return f"HTTP {answer.status_code}: {_short(reply if isinstance(reply, str) else json.dumps(reply))}{hint}"


def _retry_after(header: str | None) -> float:
    """Return the seconds of ``Retry-After``, which is a number or a date."""
    if header is None:
        return 0.0
    with contextlib.suppress(ValueError):
        seconds = float(header)
        return seconds if seconds > 0 else 0.0
    with contextlib.suppress(ValueError):
        then = parsedate_to_datetime(header)
        return (then.astimezone(timezone.utc) - datetime.now(timezone.utc)).total_seconds()
    return 0.0


def _times(count: int) -> str:
    return "tried once" if count == 1 else f"tried {count} times"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
