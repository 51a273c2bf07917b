"""The program in which vLLM runs. It takes orders from its standard input and answers on its standard output.

vLLM patches torch and transformers, seeds the random numbers, prints pages and keeps its memory until the process ends.
A session therefore runs it as a program of its own and never imports it. vLLM's engine runs in this same process, so
that its batches do not depend on when requests arrive. Messages are MessagePack, each preceded by its length.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

import msgspec
import numpy as np

_LENGTH = struct.Struct(">Q")


def send(stream: IO[bytes], message: Any) -> None:
    content = msgspec.msgpack.encode(message)
    stream.write(_LENGTH.pack(len(content)) + content)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Return the next message; None if the other side is gone."""
    length = stream.read(_LENGTH.size)
    if len(length) < _LENGTH.size:
        return None
    content = stream.read(*_LENGTH.unpack(length))
    return msgspec.msgpack.decode(content) if len(content) == _LENGTH.unpack(length)[0] else None


class _Engine:
    def __init__(self, device: str, options: Mapping[str, Any]) -> None:
        import vllm
        from vllm.platforms import current_platform

        from pytest_lmgate.engines.registry import library_warnings

        if current_platform.device_type != device:
            built = current_platform.device_type or "a device that this machine does not have"
            raise ValueError(f"this build of vLLM runs on {built}, but the device is {device}; use device: {built}")
        with library_warnings() as warnings:
            self._vllm, self._llm = vllm, vllm.LLM(**options)
        self._warnings = list(warnings)

    def facts(self) -> dict[str, Any]:
        """Return the size of the vocabulary, the ids that end a text by the checkpoint, and warnings of loading."""
        config = self._llm.llm_engine.model_config
        ends = config.try_get_generation_config().get("eos_token_id")
        ends = [ends] if isinstance(ends, int) else ends
        return {"vocabulary": config.get_vocab_size(), "ends": ends, "warnings": self._warnings}

    def score(self, prompts: Sequence[tuple[bytes, int]]) -> list[bytes]:
        """Return for each prompt the log-likelihoods and ranks of the tokens that follow its tokens.

        An answer is float32, shape ``[2, tokens]``; the rank of the most likely token is 1.

        A prompt is token ids, int64, and the token that follows. The model is made to write the latter, so that the
        prompt itself may fill the context; its log-likelihood is that of the unrestricted distribution.
        """
        reads = [self._vllm.TokensPrompt(prompt_token_ids=np.frombuffer(ids, np.int64).tolist()) for ids, _ in prompts]
        how = [
            self._vllm.SamplingParams(
                temperature=0, max_tokens=1, prompt_logprobs=0, logprobs=0, allowed_token_ids=[follows],
                ignore_eos=True, detokenize=False, flat_logprobs=True,
            )
            for _, follows in prompts
        ]  # fmt: skip
        outputs = self._llm.generate(reads, how, use_tqdm=False)
        return [
            np.array(
                [
                    [*output.prompt_logprobs.logprobs, *output.outputs[0].logprobs.logprobs],
                    [*output.prompt_logprobs.ranks, *output.outputs[0].logprobs.ranks],
                ],
                np.float32,
            ).tobytes()
            for output in outputs
        ]

    def write(
        self, prompts: Sequence[list[int]], seeds: Sequence[int | None], how: Mapping[str, Any]
    ) -> list[tuple[list[int], list[float]]]:
        """Return the ids that the model writes after each prompt, with the end token, and each one's log-likelihood."""
        reads = [self._vllm.TokensPrompt(prompt_token_ids=ids) for ids in prompts]
        outputs = self._llm.generate(
            reads, [self._vllm.SamplingParams(seed=seed, logprobs=0, **how) for seed in seeds], use_tqdm=False
        )
        texts = [(list(output.outputs[0].token_ids), output.outputs[0].logprobs) for output in outputs]
        return [(ids, [float(of[id_].logprob) for id_, of in zip(ids, tops, strict=True)]) for ids, tops in texts]

    def close(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()


def main() -> None:
    orders, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # where vLLM prints
    engine: Any = None
    while (order := receive(orders)) is not None:
        try:
            if order["do"] == "open":
                engine = _Engine(**order["given"])
                result = engine.facts()
            else:
                result = getattr(engine, order["do"])(**order["given"])
            answer = {"found": result}
        except Exception as error:
            answer = {"kind": type(error).__name__, "says": str(error)}
        send(answers, answer)
    if engine is not None:
        engine.close()
    sys.stderr.flush()
    os._exit(0)  # vLLM has threads that would hold the interpreter up


if __name__ == "__main__":
    main()
