"""A server whose texts a fault may break, by requests that are changed on their way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from pytest_lmgate.engines.base import Runner
from pytest_lmgate.engines.server import ServerRunner
from pytest_lmgate.tools.drill.planting import SEED, Broken, NotPlanted


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
        if fields.pop("ignore_eos", False):
            if self.tokenizer.eos is None:
                raise NotPlanted("no token ends its texts")
            fields["logit_bias"] = {str(self.tokenizer.eos): -100}  # few servers know ignore_eos
        with self._runner.measuring():
            if refusal := self._runner.refusal(**fields):
                raise NotPlanted(f"its server takes no {', '.join(fields)}: {refusal}")
        super().decode(**fields)

    def _changed(self, path: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return a request as the broken server reads it."""
        body = {**body, **self.decoding}
        if self.decoding:
            body.setdefault("seed", SEED)
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
                path, body["prompt"] = "/completions", self._template(body.pop("messages"))
        return path, body

    def _less(self, text: str) -> str:
        """Return a text without its first tokens, and with one token at least."""
        ids = list(self.tokenizer.encode(text, False)) if self.cut else []
        less = self.tokenizer.text(ids[min(self.cut, len(ids) - 1) :]) if ids else text
        return text if less is None else less

    def _asked(self, ask: Callable[..., dict[str, Any]], path: str, body: Any = None, **how: Any) -> dict[str, Any]:
        if body is None:
            return ask(path, **how)
        answer = ask(*self._changed(path, body), **how)
        if self._template is not None:  # to a chat that was sent as a text: the gate expects a message
            for choice in answer.get("choices", ()):
                choice["message"] = {"role": "assistant", "content": choice.pop("text", None)}
        return answer

    def open(self) -> Runner:
        runner = self._runner
        if not runner.settings.chat:
            with runner.measuring():
                runner.reads_ids()
        made = runner.through(self._asked)
        plain = made.measuring

        @contextlib.contextmanager
        def measuring() -> Iterator[None]:
            with runner.measuring(), plain():  # a server that the session started runs
                yield

        made.measuring, made.tokenizer = measuring, self.tokenizer  # type: ignore[method-assign]
        return made
