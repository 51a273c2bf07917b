"""The program in which vLLM runs. It takes orders from its standard input and answers on its standard output.

vLLM patches torch and transformers, seeds the random numbers, prints pages and keeps its memory until the process ends.
A session therefore runs it as a program of its own and never imports it. The engine itself runs in this process: vLLM
then makes its batches of the requests alone, and not of when they come in.
"""

from __future__ import annotations

__all__ = ["main"]

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pytest_lmgate.backends.vllm.wire import receive, send


class _Engine:
    """A model that vLLM has loaded, on a kind of device as torch calls it, with arguments of ``vllm.LLM``.

    Raises:
        ValueError: This build of vLLM runs on another kind of device.
    """

    def __init__(self, device: str, options: Mapping[str, Any]) -> None:
        import vllm
        from vllm.platforms import current_platform

        if current_platform.device_type != device:
            built = current_platform.device_type or "no device of this machine"
            raise ValueError(f"this build of vLLM runs on {built}, but the device is {device}; say device: {built}")
        self._vllm, self._llm = vllm, vllm.LLM(**options)

    def facts(self) -> dict[str, Any]:
        """Return the entries of the vocabulary, and the ids that end a text as far as the checkpoint says."""
        config = self._llm.llm_engine.model_config
        ends = config.try_get_generation_config().get("eos_token_id")
        return {"vocabulary": config.get_vocab_size(), "ends": [ends] if isinstance(ends, int) else ends}

    def score(self, prompts: Sequence[tuple[bytes, int]]) -> list[bytes]:
        """Return the log-likelihoods of what follows each token of some prompts.

        Behind the last token of a prompt follows a token that the model is made to write, so that the prompt itself may
        fill the whole context. Its log-likelihood is that of the model's own distribution, before that restriction.

        Args:
            prompts: Token ids, int64, and the token that follows.

        Returns:
            For each prompt float32, shape ``[tokens]``.
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
        found = ([*each.prompt_logprobs.logprobs, *each.outputs[0].logprobs.logprobs] for each in outputs)
        return [np.array(values, np.float32).tobytes() for values in found]

    def write(
        self, prompts: Sequence[list[int]], seeds: Sequence[int | None], how: Mapping[str, Any]
    ) -> list[tuple[list[int], float]]:
        """Return what the model writes after each prompt, its end token included, and the log-likelihood of that.

        Args:
            prompts: Token ids.
            seeds: A prompt's own seed each.
            how: Further arguments of ``vllm.SamplingParams``.
        """
        reads = [self._vllm.TokensPrompt(prompt_token_ids=ids) for ids in prompts]
        outputs = self._llm.generate(
            reads, [self._vllm.SamplingParams(seed=seed, logprobs=0, **how) for seed in seeds], use_tqdm=False
        )
        return [(list(each.outputs[0].token_ids), float(each.outputs[0].cumulative_logprob)) for each in outputs]

    def close(self) -> None:
        """End the processes that vLLM started."""
        self._llm.llm_engine.engine_core.shutdown()


def main() -> None:
    """Do what standard input orders until it ends."""
    orders, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # whatever vLLM prints
    engine: Any = None
    while (order := receive(orders)) is not None:
        try:
            if order["do"] == "open":
                engine = _Engine(**order["given"])
                found = engine.facts()
            else:
                found = getattr(engine, order["do"])(**order["given"])
            answer = {"found": found}
        except Exception as error:
            answer = {"kind": type(error).__name__, "says": str(error)}
        send(answers, answer)
    if engine is not None:
        engine.close()
    sys.stderr.flush()
    os._exit(0)  # vLLM has threads that would hold the interpreter up


if __name__ == "__main__":
    main()
