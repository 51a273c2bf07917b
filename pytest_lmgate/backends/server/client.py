"""Requests to a server: sent again where that may help, answered with JSON, or one clear error.

Nothing else of this package imports httpx2.
"""

from __future__ import annotations

__all__ = ["BadAnswer", "Client", "WrongNumbers"]

import contextlib
import json
import random
import re
import time
import weakref
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from pytest_lmgate.backends.server.settings import ServerSettings
from pytest_lmgate.errors import EngineError, ModelError, UnreliableError, harmless, nearest

# A server that is busy or starts answers so; the same request may succeed later.
_LATER = (408, 425, 429, 502, 503, 504)
# The first wait in seconds, which doubles each time, and the longest that a server may ask for.
_WAIT, _LONGEST_WAIT = 0.25, 300.0
_SHOWN = 160


class BadAnswer(EngineError):
    """The server answered, but not with what it was asked for."""


class WrongNumbers(BadAnswer, UnreliableError):
    """The likelihoods in an answer cannot be, or contradict those of earlier answers."""


class Client:
    """A server of one model; several threads may ask at once.

    Raises:
        ModelError: httpx2 is not installed.
    """

    def __init__(self, name: str, settings: ServerSettings) -> None:
        try:
            import httpx2
        except ImportError as error:
            raise ModelError(
                f"model {name!r}: a server is asked through httpx2, which cannot be imported ({error}): "
                "pip install 'pytest-lmgate[server]'"
            ) from error
        self.name, self.settings, self._failure = name, settings, httpx2.RequestError

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
        """Return the answer of ``/completions``; see `_ask`."""
        try:
            answer = self._ask("/completions", {"model": self.settings.model, **body}, tries=tries)
        except BadAnswer as error:
            if "HTTP 404" not in (said := self.reason(error)) or self.settings.model not in said:
                raise
            self.served_context()  # raises an error that names the models, if the server lists them
            unknown = f"it has no model {self.settings.model!r} ({said}): check models.{self.name}.model"
            raise EngineError(f"{self._about}{unknown}") from error
        choices = answer.get("choices")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise self.wrong(f"expected one completion under choices, got {_short(json.dumps(answer))}")
        wanted, named = self.settings.model, answer.get("model")
        # Some servers add the version, or the date of it.
        if isinstance(named, str) and not re.fullmatch(rf"{re.escape(wanted)}([-:@]\d.*)?", named):
            raise self.wrong(
                f"it answers as the model {named!r}: expected {wanted!r}; check models.{self.name}.model, and whether "
                "another model took its place"
            )
        return answer

    def served_context(self) -> int | None:
        """Return how many tokens the model can read, where the server says so.

        Raises:
            ModelError: The server has no model of the name.
        """
        try:
            answer = self._ask("/models")
        except BadAnswer as error:
            if "HTTP 404" in str(error) or "HTTP 405" in str(error):
                return None  # the first request tells whether the server knows the model
            raise
        listed = answer.get("data")
        known = {each.get("id"): each for each in listed if isinstance(each, dict)} if isinstance(listed, list) else {}
        if (wanted := self.settings.model) not in known:
            names = [str(each) for each in known]
            raise ModelError(
                f"model {self.name!r}: the server {self.settings.url} has no model {wanted!r}{nearest(wanted, names)}; "
                f"it has {', '.join(names) or 'none'}: check models.{self.name}.model"
            )
        context = known[wanted].get("max_model_len")
        return context if isinstance(context, int) and context > 0 else None

    def wrong(self, what: str, kind: type[BadAnswer] = BadAnswer) -> BadAnswer:
        """Return an error about an answer of the server."""
        return kind(f"{self._about}{self.settings.hidden(what)}")

    def reason(self, error: Exception) -> str:
        """Return what an error about an answer says, without the names of model and server."""
        return str(error).removeprefix(harmless(self._about))

    @property
    def _about(self) -> str:
        return f"model {self.name!r}: the server {self.settings.url}: "

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def _ask(self, path: str, body: Mapping[str, Any] | None = None, *, tries: bool = False) -> dict[str, Any]:
        """Send a request, and again with longer and longer waits where the server is busy or cannot be reached.

        Args:
            path: Below the server's address.
            body: Sent as JSON by POST; None sends GET.
            tries: Whether the server may not be able to do this: then an internal error is met but twice.

        Raises:
            BadAnswer: The server will not do it.
            EngineError: The server cannot be reached, or failed each time, or its answer is no JSON object.
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
                problem = self._said(answer)
                refusal = answer.status_code not in _LATER
                if answer.status_code < 500 and refusal:
                    raise self.wrong(problem)
                wait = max(wait, _asked_to_wait(answer.headers.get("Retry-After")))
            if attempt == settings.retries or (tries and refusal and attempt == 1) or wait > _LONGEST_WAIT:
                break
            time.sleep(wait)
        if refusal:
            raise self.wrong(f"{problem} ({_times(attempt + 1)})")
        later = f" and asks to wait {wait:,.0f} s" if wait > _LONGEST_WAIT else ""
        failed = self.wrong(
            f"{problem}{later} ({_times(attempt + 1)}, up to {settings.timeout} s each); check that it runs, and see "
            f"load: {{retries, timeout, concurrency}} of models.{self.name}"
        )
        raise EngineError(str(failed))

    def _json(self, answer: Any) -> dict[str, Any]:
        try:
            found = json.loads(answer.content)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            kind = answer.headers.get("Content-Type", "no content type")
            raise self.wrong(
                f"expected a JSON object, got {kind} that begins {_short(answer.text)!r}; is the address right? Most "
                "end in /v1"
            )
        return found

    def _said(self, answer: Any) -> str:
        """What an answer without success says, in one line."""
        try:
            said: Any = json.loads(answer.content)
        except ValueError:
            said = answer.text
        for key in ("error", "message", "detail"):
            said = said.get(key, said) if isinstance(said, dict) else said
        hint = ""
        if answer.status_code in (401, 403):
            hint = f"; check the key in {self.settings.variable}" if self.settings.variable else "; it may need a key:"
        if answer.is_redirect:
            hint = f"; it moved to {answer.headers.get('Location')}: check models.{self.name}.server"
        return f"HTTP {answer.status_code}: {_short(said if isinstance(said, str) else json.dumps(said))}{hint}"


def _asked_to_wait(header: str | None) -> float:
    """Return the seconds that ``Retry-After`` asks for, a number or a date; 0 without it."""
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
    return "asked once" if count == 1 else f"asked {count} times"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
