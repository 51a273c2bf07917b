"""The engine command: a program of the user's own reads token ids and prints log-probabilities, as lines of JSON.

docs/howto/command_engine.md has the protocol. The program runs below the guard of `engines.server`, so that nothing of
it stays behind, and may answer before it has read everything: neither side waits at a full pipe. Each time that it
starts, what programs get wrong most easily is tried out.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import msgspec
import numpy as np

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.engines.base import Backend, Batching, LoadOption, Model, ModelEntry, OutOfMemory, Runner, check_ids
from pytest_lmgate.engines.checkpoints import TokenizerFolder
from pytest_lmgate.engines.devices import says_out_of_memory
from pytest_lmgate.engines.server.client import hide
from pytest_lmgate.engines.tokenizers import facts_of
from pytest_lmgate.errors import ConfigError, EngineError, LmgateError, ModelError, NonFiniteError, UnreliableError
from pytest_lmgate.identity import versions
from pytest_lmgate.settings.entries import ServerSpec
from pytest_lmgate.windows.requests import Request, Requests
from pytest_lmgate.windows.tokens import TokenizerFacts

if TYPE_CHECKING:
    from pytest_lmgate.engines.server.process import Command


_CHUNK, _LONGEST_LINE = 2**16, 2**26  # bytes at a time, and of a line


class Pipes:
    """Pipes for a program's standard input and output."""

    def __init__(self) -> None:
        (self._stdin, self._writes), (self._reads, self._stdout) = os.pipe(), os.pipe()
        os.set_blocking(self._writes, False)
        self._heard, self._todo = bytearray(), memoryview(b"")

    @contextlib.contextmanager
    def handed_over(self) -> Iterator[tuple[int, int]]:
        """Yield the program's ends, which it inherits meanwhile; all is closed if it cannot be started."""
        try:
            yield self._stdin, self._stdout
        except BaseException:
            self.close()
            raise
        finally:
            os.close(self._stdin)
            os.close(self._stdout)

    def send(self, text: str) -> None:
        """Have a text written while `line` waits."""
        self._todo = memoryview(text.encode())

    def line(self, seconds: float, ending: int) -> bytes:
        """Return the program's next line; of one that does not end, its beginning.

        The file descriptor `ending` can be read when the program has ended, whose children may hold its output open.

        Raises:
            TimeoutError: The program has printed none for so many seconds.
            EOFError: It cannot print any more.
        """
        until, searched = time.monotonic() + seconds, 0
        with selectors.PollSelector() as ready:
            ready.register(self._reads, selectors.EVENT_READ)
            ready.register(ending, selectors.EVENT_READ)
            if self._todo:
                ready.register(self._writes, selectors.EVENT_WRITE)
            while self._heard.find(b"\n", searched) < 0 and len(self._heard) <= _LONGEST_LINE:
                searched = len(self._heard)
                events = ready.select(max(0.0, until - time.monotonic()))
                if not events:
                    raise TimeoutError
                if [key.fd for key, _ in events] == [ending]:
                    raise EOFError
                for key, _ in events:
                    if key.fd == self._writes:
                        try:
                            self._todo = self._todo[os.write(self._writes, self._todo[:_CHUNK]) :]
                        except BrokenPipeError:  # its output ends too, or answers are missing
                            self._todo = self._todo[:0]
                        if not self._todo:
                            ready.unregister(self._writes)
                    elif key.fd == self._reads:
                        if not (heard := os.read(self._reads, _CHUNK)):
                            raise EOFError
                        self._heard += heard
        line, _, self._heard = self._heard.partition(b"\n")
        return bytes(line)

    def close(self) -> None:
        os.close(self._writes)
        os.close(self._reads)


_PROTOCOL, _PROGRAM = 1, "program"  # the latter is the proof that says which program measured
_OPTIONS = {"context": LoadOption(int, 1), "timeout": LoadOption(int, 1), "wait": LoadOption(int, 1)}
_DEFAULTS = {"context": None, "timeout": 300, "wait": 600}
_UNSUPPORTED_KEYS = {
    **dict.fromkeys(("dtype", "device", "adapter"), "the program decides it: give it an option in command:"),
    "trust_remote_code": "only the tokenizer is read here, and its code is not run",
    "pickle_weights": "no weights are read here",
}
_TOKENS = 4096  # of a batch, after which a partial result can be kept
_SHOWN, _DYING = 160, 2.0  # characters of a wrong line, and seconds from its end to the news of it
# Of trials: the longest text, the tokens before a whole distribution, by how much the sum of its probabilities may be
# off, and by how many times the model's rounding a text's numbers may change in a batch.
_LONGEST, _BEFORE, _OFF, _ROUNDINGS = 48, 4, 0.01, 4
T = TypeVar("T", bound=msgspec.Struct)


class Hello(msgspec.Struct):
    """A program's first line."""

    lmgate: int
    name: str
    version: str
    vocabulary: Annotated[int, msgspec.Meta(ge=1, le=2**24)]


class ProgramAnswer(msgspec.Struct):
    """Any other line."""

    id: int
    logprobs: list[float] = []
    error: str = ""


class CommandBackend(Backend):
    """Programs of the user's own, with the tokens of a tokenizer's folder."""

    name = "command"
    offers = frozenset({"score"})

    def describe(self, entry: ModelEntry) -> Model:
        spec, where = entry.spec, f"models.{entry.name}"
        entry.refuse_keys(self.name, _UNSUPPORTED_KEYS)
        if spec.command is None or spec.tokenizer is None:
            raise ConfigError(f"{where}: the engine command needs command:, and tokenizer: with its model's tokenizer")
        if os.name != "posix":
            raise ConfigError(f"{where}.command: Windows cannot end all that a program started: use Linux or macOS")
        from pytest_lmgate.engines.server.process import Command, split_command

        given = {key: getattr(spec, key) for key in ("command", "env", "content", "versions", "requires")}
        words = split_command(spec.command, f"{where}.command")
        command = Command(entry.name, ServerSpec(**given), words, entry.path("."), within="", noun="program")
        options: dict[str, Any] = {**_DEFAULTS, **entry.load_options("the engine command", _OPTIONS)}
        folder, rows = TokenizerFolder.of(entry), spec.batch_size if isinstance(spec.batch_size, int) else None
        snapshot, digests = entry.hash_files({**folder.files, **command.files})
        content, is_known = {**digests, **command.content, **folder.ingredients}, bool(spec.content or spec.revision)

        def open_() -> Runner:
            command.require()
            return CommandRunner(partial(Program, command, entry, options), facts_of(folder), rows)

        return Model(
            entry.name,
            open_,
            context=options["context"],
            content=content if is_known else None,
            not_kept="" if is_known else "its entry has no content:, the files that decide its numbers",
            process=json.dumps([entry.run, repr((command, options, rows)), content], sort_keys=True),
            runtime={"device": "command", **command.runtime, **versions(["transformers", "tokenizers"])},
            offers=self.offers,
            device="command",
            dtype="bfloat16",  # it may be
            files=snapshot,
            changed=lambda: sorted(snapshot.moved),
            tokenizer=partial(facts_of, folder),
        )


class Program:
    """A running program. Those of one process run one after the other, since two models may not fit in memory."""

    _running: ClassVar[weakref.WeakSet[Program]] = weakref.WeakSet()

    def __init__(self, command: Command, entry: ModelEntry, options: Mapping[str, Any]) -> None:
        from pytest_lmgate.engines.server.process import launched

        for other in list(self._running):
            other.close()
        self.name, self._command, self._timeout = entry.name, command, options["timeout"]
        self._sent, self._pipes = 0, Pipes()
        self._error: LmgateError | None = None
        with self._pipes.handed_over() as theirs:
            self._lease = launched(command, entry, command.secrets, pipes=theirs)
        self._running.add(self)
        self.hello = self._next(Hello, options["wait"], "wait", ModelError)
        if self.hello.lmgate != _PROTOCOL:
            raise self._failed(f"speaks version {self.hello.lmgate} of the protocol: expected {_PROTOCOL}", ModelError)

    def ask(self, requests: Sequence[Request]) -> list[Floats]:
        """Send a batch, and return the log-probabilities of each request; `OutOfMemory` if fewer may fit."""
        if self._error is not None:
            raise self._error
        first, self._sent = self._sent, self._sent + len(requests)
        keys = {"tokens": "ids", "at": "at", "targets": "targets"}
        fields = [{key: getattr(request, name).tolist() for key, name in keys.items()} for request in requests]
        lines = [json.dumps({"id": first + number, **each}) for number, each in enumerate(fields)]
        self._pipes.send("\n".join([*lines, "", ""]))
        answers: dict[int, ProgramAnswer] = {}
        while len(answers) < len(requests):
            answer = self._next(ProgramAnswer, self._timeout, "timeout", EngineError)
            number = answer.id - first
            if number in answers or not 0 <= number < len(requests):
                when = "a second time" if 0 <= answer.id < self._sent else "which it was not sent"
                raise self._failed(f"answered request {answer.id} {when}", UnreliableError)
            if (got := len(answer.logprobs)) != (wanted := len(requests[number].targets)) and not answer.error:
                raise self._failed(f"gave {got} logprobs for request {answer.id}: expected {wanted}", UnreliableError)
            answers[number] = answer
        errors = [self._shown(answer.error) for answer in answers.values() if answer.error]
        if errors and all(map(says_out_of_memory, errors)):
            raise OutOfMemory("its program's device", errors[0])
        if errors:
            raise self._failed(f"reports an error: {errors[0]}", EngineError)
        return [np.array(answers[number].logprobs) for number in range(len(requests))]

    @property
    def has_ended(self) -> bool:
        return self not in self._running or self._lease.has_ended()

    def close(self) -> None:
        if self in self._running:
            self._running.remove(self)
            self._pipes.close()
            self._lease.release()

    def _next(self, kind: type[T], seconds: int, option: str, fails: type[LmgateError]) -> T:
        try:
            line = self._pipes.line(seconds, self._lease.fileno())
            return msgspec.convert(json.loads(line), kind)
        except TimeoutError:
            hint = f"flush its output after each line, or raise load: {{{option}: {seconds}}}"
            why = f"printed no line within {seconds} s: {hint}"
        except EOFError:
            why = self._lease.status() if self._lease.has_ended(_DYING) else "closed its standard output"
        except (ValueError, RecursionError, msgspec.ValidationError) as error:
            shown, keys = self._shown(line.decode(errors="replace")), ", ".join(kind.__struct_fields__)
            why = f"printed {shown!r} ({error}): expected JSON with {keys}, and all else on its standard error"
            fails = fails if kind is Hello else UnreliableError
        raise self._failed(why, fails)

    def _failed(self, why: str, kind: type[LmgateError]) -> LmgateError:
        """End the program, since nobody knows which answers are still to come."""
        error = self._error = kind(str(self._command.failed(why, self._lease.log)))
        self.close()
        return error

    def _shown(self, text: str) -> str:
        return hide(text, self._command.secrets)[:_SHOWN]


class CommandRunner(Runner):
    """Asks a program for likelihoods, in batches of so many `rows` if that is given."""

    def __init__(self, start: Callable[[], Program], tokenizer: TokenizerFacts, rows: int | None) -> None:
        self._start, self.tokenizer, self._rows = start, tokenizer, rows
        self._program, self._is_tried_out = start(), False

    def prepare(self, requests: Requests, *, compare: bool = False) -> Batching:
        if self._program.has_ended:
            self._program, self._is_tried_out = self._start(), False
        hello, name = self._program.hello, self._program.name
        now = f"{hello.name} {hello.version} with {hello.vocabulary} tokens"
        if (before := self.proofs.get(_PROGRAM, now)) != now:
            raise ModelError(
                f"model {name!r}: its program is {now}, but {before} measured what the cache has: name what has "
                f"changed under content: or versions: of models.{name}, or give it another revision:"
            )
        self.proofs = {**self.proofs, _PROGRAM: now}
        check_ids(requests.highest, hello.vocabulary, name)
        if not self._is_tried_out:
            ids = requests.make(int(requests.order[0])).ids[:_LONGEST]
            self._is_tried_out = self._try_out(name, hello.vocabulary, ids)
        return Batching(_TOKENS, dedup_reads=True)

    def score(self, requests: Sequence[Request]) -> list[Floats]:
        rows = self._rows or len(requests)
        batches = [requests[begin : begin + rows] for begin in range(0, len(requests), rows)]
        return [-logprobs for batch in batches for logprobs in self._program.ask(batch)]

    def close(self) -> None:
        self._program.close()

    @np.errstate(over="ignore", invalid="ignore")
    def _try_out(self, name: str, vocabulary: int, ids: Ints) -> bool:
        """Refuse other logarithms than natural ones of whole distributions, and texts that depend on their batch.

        Return False if the text is too short to tell the latter.
        """
        every, last = np.arange(vocabulary), min(len(ids), _BEFORE) - 1
        whole = Request(ids[: last + 1], np.repeat([0, last], vocabulary), np.tile(every, 2))
        sums = np.exp(-self.score([whole])[0]).reshape(2, -1).sum(1)
        if np.isnan(sums).any():
            raise NonFiniteError(
                f"model {name!r}: its program gives NaN; the weights are damaged, or a dtype overflows"
            )
        if np.abs(sums - 1).max() > _OFF:
            raise EngineError(
                f"model {name!r}: after two texts, the probabilities of all {vocabulary:,} tokens sum to {sums[0]:.4g} "
                f"and {sums[1]:.4g}: expected 1; its program has to give natural logarithms of the softmax over its "
                "whole vocabulary"
            )
        sizes = (len(ids) // 4, len(ids), len(ids) // 2)
        if self._rows == 1 or sizes[0] < 2:
            return self._rows == 1
        texts = [Request(ids[:size], np.arange(size - 1), ids[1:size]) for size in sizes]
        for alone, together in zip([self.score([text])[0] for text in texts], self.score(texts), strict=True):
            if np.abs(alone - together).mean() > _ROUNDINGS * self.epsilon * (1 + alone.mean() / 4):
                raise EngineError(
                    f"model {name!r}: a text has other likelihoods in a batch with shorter and longer texts than "
                    f"alone: mask the padding in its program, or set models.{name}.batch_size: 1; it has to give the "
                    "same numbers each time"
                )
        return True
