"""A GGUF file that a fault may break: a copy of it with other tensors, read and written by llama.cpp."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

from pytest_lmgate.engines.base import Runner
from pytest_lmgate.engines.llamacpp.gguf import LlamaCppRunner
from pytest_lmgate.tools.drill.planting import Broken, Change, NotPlanted, Weight
from pytest_lmgate.tools.parts.tensors import KINDS, Changed, GgufFile, opened


class InGguf(Broken):
    """A GGUF file, some of whose tensors are others; numbers of a quantized tensor become float32."""

    out_of_reach = "it is a GGUF, of which only tensors and texts can be broken"

    def __init__(self, name: str, runner: LlamaCppRunner) -> None:
        super().__init__(runner.tokenizer)
        self._name, self._runner, self._changed = name, runner, dict[str, Changed]()

    @cached_property
    def _file(self) -> GgufFile:
        return GgufFile(self._name, self._runner.file)

    @property
    def size(self) -> int:
        return 1 + max(int(found[1]) for name in self._file.tensors if (found := re.match(r"blk\.(\d+)\.", name)))

    def matrices(self, block: int) -> list[Weight]:
        return self._weights(block, r".*weight", 2)

    def vectors(self, block: int, what: Literal["bias", "norm"]) -> list[tuple[Weight, float]]:
        pattern, value = (r".*norm\.weight", 1.0) if what == "norm" else (r".*\.bias", 0.0)
        return [(weight, value) for weight in self._weights(block, pattern, 1)]

    def _weights(self, block: int, pattern: str, axes: int) -> list[Weight]:
        return [
            self._weight(name, found[1])
            for name, tensor in self._file.tensors.items()
            if (found := re.fullmatch(rf"blk\.{block}\.({pattern})", name)) and len(tensor.shape) == axes
        ]

    def _weight(self, name: str, short: str) -> Weight:
        def change(function: Change) -> None:
            def changed(numbers: Any) -> Any:
                return function(torch.from_numpy(numbers)).numpy().astype(np.float32)

            self._changed[name] = Changed(tensor, changed)

        tensor = self._file.tensors[name]
        part = next((kind for kind, pattern in KINDS.items() if re.match(pattern, short)), None)
        return Weight(short, part, lambda: torch.from_numpy(tensor.floats), change)

    def decode(self, **fields: Any) -> None:
        if "repetition_penalty" in fields:
            raise NotPlanted("the loop that writes texts with llama.cpp has no penalties")
        super().decode(**fields)

    def open(self) -> Runner:
        runner = self._runner
        made = opened(runner, self._file, self._changed) if self._changed else runner.reopened(runner.file)
        assert isinstance(made, LlamaCppRunner)
        if self.decoding.get("ignore_eos"):
            made.tokens = replace(made.tokens, ends=lambda _: False, facts=replace(made.tokens.facts, eos=None))
        return self.speaking(made)
