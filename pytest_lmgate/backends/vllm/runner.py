"""A model that vLLM has loaded: vLLM makes the batches."""

from __future__ import annotations

__all__ = ["VllmRunner", "opened"]

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pytest_lmgate.arrays import Floats
from pytest_lmgate.backends.base import Batching, Runner
from pytest_lmgate.backends.hf.models.device import device_class
from pytest_lmgate.backends.hf.models.loading import decoded, load_tokenizer, tokenizer_facts
from pytest_lmgate.backends.vllm.process import Failure, VllmProcess
from pytest_lmgate.backends.vocabulary import check_ids
from pytest_lmgate.backends.writing import row_seed, sampling
from pytest_lmgate.config.arguments.generation import GenerationSettings
from pytest_lmgate.data.requests.requests import Request, Requests
from pytest_lmgate.data.tokenization.prompting import PromptIds
from pytest_lmgate.errors import EngineError, ModelError, NonFiniteError

# Tokens that vLLM is given at a time, many of its own batches, which it fills best where it has many to choose from.
_CPU_TOKENS, _ACCELERATOR_TOKENS = 16384, 2**18


def opened(name: str, arguments: Mapping[str, Any], environment: Mapping[str, str], *, device: str) -> VllmRunner:
    """Load a model with the arguments of ``vllm.LLM`` and the environment variables of vLLM's process.

    Raises:
        ModelError: vLLM or the tokenizer's library cannot load it.
        EngineError: Memory ran out, or the process of vLLM ended.
    """
    tokenizer = load_tokenizer(name, Path(arguments["tokenizer"]), trust_remote_code=arguments["trust_remote_code"])

    def start() -> tuple[VllmProcess, Mapping[str, Any]]:
        process = VllmProcess(name, environment)
        try:
            return process, process.ask("open", device=device_class(device), options=arguments)
        except Failure as error:
            process.close()
            if error.is_out_of_memory:
                raise EngineError(
                    f"model {name!r}: no memory to load it with vLLM on {device}: {error}; lower load: "
                    "{max_model_len: ..} or load: {kv_cache_memory_bytes: ..}, or take a device with more memory"
                ) from error
            raise ModelError(f"model {name!r}: vLLM cannot load {arguments['model']}: {error}") from error
        except BaseException:
            process.close()
            raise

    return VllmRunner(name, start, tokenizer, _CPU_TOKENS if device == "cpu" else _ACCELERATOR_TOKENS)


class VllmRunner(Runner):
    """Scores requests and writes texts with vLLM.

    Args:
        name: The model's name, for messages.
        start: Starts a process of vLLM that loads the model, and returns what it says of the model.
        tokenizer: The model's tokenizer, of transformers.
        tokens: Tokens that vLLM is given at a time.
    """

    any_target = False

    def __init__(
        self, name: str, start: Callable[[], tuple[VllmProcess, Mapping[str, Any]]], tokenizer: Any, tokens: int
    ) -> None:
        self._name, self._start, self._tokenizer, self._tokens = name, start, tokenizer, tokens
        self._process, facts = start()
        self._vocabulary_size = facts["vocabulary"]
        eos = getattr(tokenizer, "eos_token_id", None)
        self._ends = sorted(facts["ends"] or ([] if eos is None else [eos]))
        self.tokenizer = tokenizer_facts(tokenizer)

    def prepare(self, requests: Requests, *, compare: bool = False) -> Batching:
        """Check the token ids.

        Raises:
            ModelError: A token id is beyond the vocabulary.
        """
        self._restart()
        check_ids(requests.highest, self._vocabulary_size, self._name)
        return Batching(self._tokens)

    def score(self, requests: Sequence[Request]) -> list[Floats]:
        """Return the NLLs of the requests' targets.

        Raises:
            EngineError: vLLM failed, or a target is not the token that follows its position.
        """
        found = self._ask("score", prompts=[self._prompt(request) for request in requests])
        return [
            -np.frombuffer(values, np.float32).astype(np.float64)[request.at]
            for values, request in zip(found, requests, strict=True)
        ]

    def prepare_writing(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Batching:
        """Return how many tokens vLLM is given at a time."""
        self._restart()
        return Batching(self._tokens)

    def generate(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> list[tuple[str, int]]:
        """Write a text for each prompt.

        Raises:
            NonFiniteError: The logits are NaN or infinite.
            EngineError: vLLM failed.
        """
        how: dict[str, Any] = {
            "max_tokens": settings.max_new_tokens,
            **sampling(settings),
            "stop": list(settings.stop),
            "detokenize": bool(settings.stop),
            "ignore_eos": True,  # else the tokenizer's EOS too would end a text, whatever the checkpoint says
            "stop_token_ids": self._ends,
        }
        seeds = [None if settings.seed is None else row_seed(settings.seed, prompt.row) for prompt in prompts]
        written = self._ask("write", prompts=[list(prompt.ids) for prompt in prompts], seeds=seeds, how=how)
        if not all(math.isfinite(likelihood) for _, likelihood in written):
            raise NonFiniteError(
                f"model {self._name!r}: NaN or infinite logits while generating; the weights are damaged, or the dtype "
                "overflows (try dtype: float32)"
            )
        return [(self._text(ids), len(ids)) for ids, _ in written]

    def close(self) -> None:
        """End the process of vLLM."""
        self._process.close()

    def _restart(self) -> None:
        """Start vLLM again if its process ended in an earlier measurement, as where the system killed it."""
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
        """Return the tokens that predict a request's targets, as bytes, and the token that follows the last of them."""
        last = int(request.at.argmax())
        ids = request.ids[: int(request.at[last]) + 1].astype(np.int64)
        follows = int(request.targets[last])
        if not np.array_equal(np.append(ids[1:], follows)[request.at], request.targets):
            raise EngineError(f"model {self._name!r}: the engine vllm scores only the token that follows a position")
        return ids.tobytes(), follows

    def _text(self, ids: Sequence[int]) -> str:
        end = next((at for at, token in enumerate(ids) if token in self._ends), len(ids))
        return decoded(self._tokenizer, ids[:end])
