"""A model that vLLM runs in a process of its own: the session's side of that process, and the runner."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from pytest_lmgate.arrays import Floats
from pytest_lmgate.engines.base import Batching, Drawn, Runner, check_ids
from pytest_lmgate.engines.checkpoints import Checkpoint, TokenizerFolder
from pytest_lmgate.engines.devices import device_class, says_out_of_memory
from pytest_lmgate.engines.tokenizers import decoded, load_tokenizer, tokenizer_facts
from pytest_lmgate.engines.transformers.loading import require_all_used
from pytest_lmgate.engines.vllm.worker import receive, send
from pytest_lmgate.engines.writing import ended_text, row_seed, sampling
from pytest_lmgate.errors import EngineError, ModelError, NonFiniteError
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.windows.requests import Request, Requests
from pytest_lmgate.windows.tokens import PromptIds

_MODULE = "pytest_lmgate.engines.vllm.worker"
# These override the user's environment.
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "PYTHONWARNINGS": "ignore",
}
_LONGEST = 400
_PATIENCE = 20.0  # seconds to end
# Tokens that vLLM is given at a time: many of its own batches, so that it can fill each.
_CPU_TOKENS, _ACCELERATOR_TOKENS = 16384, 2**18


class Failure(Exception):
    """vLLM raised an exception: its class, and its message as one line."""

    def __init__(self, kind: str, says: str) -> None:
        super().__init__(kind, says)
        self.kind, self.says = kind, says

    @property
    def is_out_of_memory(self) -> bool:
        return says_out_of_memory(f"{self.kind} {self.says}")

    def __str__(self) -> str:
        return f"{self.kind}: {self.says}"


class VllmProcess:
    """A process of vLLM, with additional environment variables.

    It ends with `close`, and by itself once the session is gone, since its standard input ends then.
    """

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self._name = name
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process is
        self._process = subprocess.Popen(
            [sys.executable, *(["-P"] if sys.version_info >= (3, 11) else []), "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            env={**os.environ, **_ENVIRONMENT, **environment},
        )

    def ask(self, do: str, **given: Any) -> Any:
        """Have the process call a method of its engine, or ``open`` it, and return the result.

        An exception of vLLM is a `Failure`, a process that has ended an `EngineError`.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answer = None
        with contextlib.suppress(OSError):
            send(self._process.stdin, {"do": do, "given": given})
            answer = receive(self._process.stdout)
        if answer is None:
            raise EngineError(f"model {self._name!r}: the process of vLLM {self._why()}")
        if "found" not in answer:
            raise Failure(answer["kind"], _one_line(answer["says"]))
        return answer["found"]

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._printed.close()

    def _why(self) -> str:
        status = self._process.wait()
        hint = " (probably the OOM killer)" if status == -signal.SIGKILL else ""
        end = f"was killed by {signal.Signals(-status).name}{hint}" if status < 0 else f"ended with status {status}"
        self._printed.seek(0)
        lines = self._printed.read().decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f"{end}{'; its last output: ' + _one_line(last) if last else ''}"


def _one_line(text: str) -> str:
    """Return a message in one line, without pydantic's frame and without the end of a long list."""
    line = re.sub(r"^\d+ validation errors? for \w+ (Value error, )?", "", " ".join(text.split()))
    line = re.sub(r" \[type=.*", "", line)
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."


def opened(
    checkpoint: Checkpoint,
    tokenizer_folder: TokenizerFolder,
    arguments: Mapping[str, Any],
    environment: Mapping[str, str],
    *,
    device: str,
) -> VllmRunner:
    """Load a model with the arguments of ``vllm.LLM`` and the environment variables of vLLM's process."""
    name, tokenizer = checkpoint.name, load_tokenizer(tokenizer_folder)
    require_all_used(checkpoint, trust_remote_code=arguments["trust_remote_code"])

    def start() -> tuple[VllmProcess, Mapping[str, Any]]:
        process = VllmProcess(name, environment)
        try:
            return process, process.ask("open", device=device_class(device), options=arguments)
        except Failure as error:
            process.close()
            if error.is_out_of_memory:
                raise EngineError(
                    f"model {name!r}: no memory to load it with vLLM on {device}: {error}; lower load: "
                    "{max_model_len: ..} or load: {kv_cache_memory_bytes: ..}, or use a device with more memory"
                ) from error
            raise ModelError(f"model {name!r}: vLLM cannot load {arguments['model']}: {error}") from error
        except BaseException:
            process.close()
            raise

    return VllmRunner(name, start, tokenizer, _CPU_TOKENS if device == "cpu" else _ACCELERATOR_TOKENS)


class VllmRunner(Runner):
    """Scores requests and writes texts with vLLM, which makes the batches of the `tokens` that it is given at a time.

    `start` starts a process of vLLM that loads the model, and returns the model's facts.
    """

    any_target = False

    def __init__(
        self, name: str, start: Callable[[], tuple[VllmProcess, Mapping[str, Any]]], tokenizer: Any, tokens: int
    ) -> None:
        self._name, self._start, self._tokenizer, self._tokens = name, start, tokenizer, tokens
        self._process, facts = start()
        self._vocabulary_size = facts["vocabulary"]
        for library, text in (warning.split(": ", 1) for warning in facts["warnings"]):
            logging.getLogger(library).warning("%s", text)
        eos = getattr(tokenizer, "eos_token_id", None)
        self._ends = sorted(facts["ends"] or ([] if eos is None else [eos]))
        self.tokenizer = tokenizer_facts(tokenizer)

    def prepare(self, requests: Requests, *, compare: bool = False) -> Batching:
        self._restart()
        check_ids(requests.highest, self._vocabulary_size, self._name)
        return Batching(self._tokens)

    def score(self, requests: Sequence[Request]) -> list[Floats]:
        answer = self._ask("score", prompts=[self._prompt(request) for request in requests])
        scored = []
        for values, request in zip(answer, requests, strict=True):
            logprobs, ranks = np.frombuffer(values, np.float32).astype(np.float64).reshape(2, -1)[:, request.at]
            scored.append(np.stack([-logprobs, ranks == 1], 1) if request.greedy else -logprobs)
        return scored

    def prepare_writing(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Batching:
        self._restart()
        return Batching(self._tokens)

    def generate(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> list[tuple[str, int, bool]]:
        ends = {*self._ends, *([] if self.tokenizer.eos is None else [self.tokenizer.eos])}
        written, decode = self._write(prompts, settings, ends), partial(decoded, self._tokenizer)
        return [ended_text(ids, settings.stop, decode=decode, ends=ends.__contains__) for ids, _ in written]

    def sample(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> list[Drawn]:
        return [
            (ids, [-logprob for logprob in logprobs]) for ids, logprobs in self._write(prompts, settings, self._ends)
        ]

    def _write(
        self, prompts: Sequence[PromptIds], settings: GenerationSettings, ends: Collection[int]
    ) -> list[tuple[list[int], list[float]]]:
        """Return the ids that vLLM writes until one of the tokens that end a text, and their log-probabilities."""
        how: dict[str, Any] = {
            "max_tokens": settings.max_new_tokens,
            **sampling(settings),
            "stop": list(settings.stop),
            "detokenize": bool(settings.stop),
            "skip_special_tokens": False,  # a stop string may name one
            "ignore_eos": True,  # the tokenizer's EOS would also end a sample
            "stop_token_ids": sorted(ends),
        }
        seeds = [None if settings.seed is None else row_seed(settings.seed, prompt.row) for prompt in prompts]
        written: list[tuple[list[int], list[float]]] = self._ask(
            "write", prompts=[list(prompt.ids) for prompt in prompts], seeds=seeds, how=how
        )
        if not all(math.isfinite(sum(logprobs)) for _, logprobs in written):
            raise NonFiniteError(
                f"model {self._name!r}: NaN or infinite logits while generating; the weights are damaged, or the dtype "
                "overflows (try dtype: float32)"
            )
        return written

    def close(self) -> None:
        self._process.close()

    def _restart(self) -> None:
        """Start vLLM again if its process ended in an earlier measurement."""
        if self._process.has_ended:
            self._process.close()
            self._process, _ = self._start()

    def _ask(self, do: str, **given: Any) -> Any:
        try:
            return self._process.ask(do, **given)
        except Failure as error:
            if error.is_out_of_memory:
                raise EngineError(
                    f"model {self._name!r}: out of memory in vLLM: {error}; lower load: {{max_num_batched_tokens: ..}} "
                    "or load: {gpu_memory_utilization: ..}"
                ) from error
            raise EngineError(f"model {self._name!r}: vLLM failed: {error}") from error

    def _prompt(self, request: Request) -> tuple[bytes, int]:
        """Return the tokens that predict a request's targets, as bytes, and the token that follows."""
        last = int(request.at.argmax())
        ids = request.ids[: int(request.at[last]) + 1].astype(np.int64)
        follows = int(request.targets[last])
        if not np.array_equal(np.append(ids[1:], follows)[request.at], request.targets):
            raise EngineError(f"model {self._name!r}: the engine vllm scores only the token that follows a position")
        return ids.tobytes(), follows
