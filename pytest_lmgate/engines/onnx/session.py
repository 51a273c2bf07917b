"""An ONNX model that is loaded: a session of onnxruntime, wrapped as a model of torch.

So the trials, batches and likelihoods are those of the engine transformers: a model that looks ahead is refused, and
rows whose numbers depend on their batch run with rows of their length, or alone. Texts are written one by one. The
inputs and outputs have optimum's names. Only this folder imports onnxruntime.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.engines.base import Batching, Drawn, OutOfMemory
from pytest_lmgate.engines.devices import says_out_of_memory
from pytest_lmgate.engines.logits import Logits
from pytest_lmgate.engines.onnx import OnnxOptions, library
from pytest_lmgate.engines.tokenizers import decoded
from pytest_lmgate.engines.transformers.loading import LoadedModel
from pytest_lmgate.engines.transformers.runner import TransformersRunner
from pytest_lmgate.engines.writing import drawn, written
from pytest_lmgate.errors import EngineError, ModelError
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.windows.requests import Request, Requests
from pytest_lmgate.windows.tokens import PromptIds

_TYPES = {
    "tensor(int64)": np.int64, "tensor(int32)": np.int32,
    "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64,
}  # fmt: skip
_READ = ("input_ids", "attention_mask", "position_ids")
_PAST, _PRESENT = "past_key_values.", "present."
_CUT = ("protobuf parsing failed", "no graph was found", "out of bounds or can not be read")
_EXPORT = "export it with optimum-cli export onnx --task text-generation-with-past"


@dataclass(frozen=True)
class State:
    """Keys and values of the tokens that a session has read, by the names of its inputs."""

    length: int
    past: dict[str, NDArray[Any]]


class Session:
    """An ONNX model that is loaded."""

    def __init__(self, name: str, file: Path, options: OnnxOptions) -> None:
        self._name, self._file = name, file
        runtime = library(name)
        try:
            self._session = runtime.InferenceSession(
                str(file), options.session_options(runtime), providers=options.providers(), enable_fallback=0
            )
        except Exception as error:  # onnxruntime's own have no class in common
            raise self._failed_to_load(error) from error
        if (got := self._session.get_providers()[0]) != options.provider:
            raise ModelError(
                f"model {name!r}: the device {options.device!r} cannot be used: onnxruntime chose {got} instead of "
                f"{options.provider}; use device: cpu, or install the libraries that {options.provider} needs"
            )
        self._inputs = {node.name: node for node in self._session.get_inputs()}
        outputs = {node.name: node for node in self._session.get_outputs()}
        self._present = {past: past.replace(_PAST, _PRESENT, 1) for past in self._inputs if past.startswith(_PAST)}
        self._require_known(outputs)
        self.has_past = bool(self._present)  # whether keys and values can be kept from one token to the next
        self.dtype = np.dtype(_TYPES[outputs["logits"].type])
        size = outputs["logits"].shape[-1]
        self.vocabulary_size = size if isinstance(size, int) else self.read(np.zeros((1, 1), np.int64))[0].shape[-1]

    def read(self, ids: Ints, state: State | None = None, *, keep: bool = False) -> tuple[NDArray[Any], State]:
        """Read token ids, shape ``[batch, tokens]``, that follow those of `state`; padding is read like any other.

        Returns:
            The logits after each token, shape ``[batch, tokens, vocabulary]``, and the state after the last token,
            empty without `keep`.
        """
        batch, tokens = ids.shape
        begin = 0 if state is None else state.length
        past = self._empty(batch) if state is None else state.past
        fed = {
            "input_ids": ids,
            "attention_mask": np.ones((batch, begin + tokens), np.int64),
            "position_ids": np.arange(begin, begin + tokens)[None].repeat(batch, 0),
            **past,
        }
        fed = {name: fed[name].astype(_TYPES[node.type], copy=False) for name, node in self._inputs.items()}
        wanted = ["logits", *(self._present.values() if keep else ())]
        try:
            logits, *present = self._session.run(wanted, fed)
        except Exception as error:
            if not _is_out_of_memory(error):
                raise
            details = _reason(error)
        else:
            if logits.shape[:2] != ids.shape:
                raise EngineError(
                    f"model {self._name!r}: expected logits of shape [{batch}, {tokens}, vocabulary] of "
                    f"{self._file.name}, got {list(logits.shape)}: {_EXPORT}"
                )
            return logits, State(begin + tokens, dict(zip(self._present, present, strict=False)))
        raise OutOfMemory("the device", details)

    def _empty(self, batch: int) -> dict[str, NDArray[Any]]:
        """Return keys and values of no token; the first axis is the batch's."""
        empty = {}
        for name in self._present:
            first, *rest = self._inputs[name].shape
            shape = [first if isinstance(first, int) else batch, *(n if isinstance(n, int) else 0 for n in rest)]
            empty[name] = np.zeros(shape, _TYPES[self._inputs[name].type])
        return empty

    def _require_known(self, outputs: dict[str, Any]) -> None:
        where = f"model {self._name!r}: {self._file.name}"
        if unknown := [name for name in self._inputs if name not in (*_READ, *self._present)]:
            raise ModelError(f"{where} needs inputs that this engine does not have ({', '.join(unknown)}): {_EXPORT}")
        needed = ["logits", *self._present.values()]
        if missing := [name for name in needed if name not in outputs]:
            raise ModelError(
                f"{where} lacks the outputs {', '.join(missing)} of a causal model (it has {', '.join(outputs)}): "
                f"{_EXPORT}"
            )
        if "input_ids" not in self._inputs:
            raise ModelError(f"{where} has no input_ids (it has {', '.join(self._inputs)}): {_EXPORT}")
        if any(isinstance(length, int) for length in self._inputs["input_ids"].shape):
            shape = list(self._inputs["input_ids"].shape)
            raise ModelError(f"{where} reads ids of the shape {shape} only, but a text may be of any length: {_EXPORT}")
        for node in (*self._inputs.values(), outputs["logits"]):
            if node.type not in _TYPES:
                raise ModelError(
                    f"{where}: {node.name} is a {node.type}, which numpy does not have: export it with --dtype fp32"
                )

    def _failed_to_load(self, error: Exception) -> ModelError | EngineError:
        reason = _reason(error)
        if _is_out_of_memory(error):
            return EngineError(f"model {self._name!r}: no memory to load {self._file}: {reason}")
        hint = "; the file is truncated or damaged: copy it again" if any(c in reason.lower() for c in _CUT) else ""
        if "does not exist" in reason:
            hint = "; copy the data file into the folder of the .onnx file"
        if "not a registered function" in reason:
            hint = "; libraries of custom operators are not supported"
        return ModelError(f"model {self._name!r}: onnxruntime cannot load {self._file}: {reason}{hint}")


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or says_out_of_memory(str(error))


def _reason(error: Exception) -> str:
    """Return onnxruntime's message in one line, without its status numbers and source positions."""
    words = " ".join(str(error).split()) or type(error).__name__
    words = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", words)
    return re.sub(r"\S+\.(cc|h):\d+ \S+ ", "", words).rstrip(".")


class OnnxRunner(TransformersRunner):
    """Reads requests and writes texts; the tokenizer is of transformers, and `ends` are ids that end a text."""

    def __init__(self, name: str, session: Session, tokenizer: Any, ends: Collection[int], context: int | None) -> None:
        super().__init__(_Loaded(name, OnnxModel(session), tokenizer, torch.device("cpu")), context)
        self._ends = ends

    def prepare(self, requests: Requests, *, compare: bool = False) -> Batching:
        # Windows that differ in their last token alone are read whole here, and so cannot be merged.
        batching = super().prepare(requests, compare=compare)
        is_whole = requests.make(int(requests.order[0])).follows is not None
        return replace(batching, dedup_reads=batching.dedup_reads and not is_whole)

    def begin(self, requests: Sequence[Request]) -> Callable[[], list[Floats]]:
        """Score requests, and read the last token of each window as the protocol's own program does.

        It predicts nothing, but the int8 activations of all tokens of a batch share a scale.
        """
        return super().begin([_whole(request) for request in requests])

    def distributions(self, requests: Sequence[Request]) -> Logits:
        return super().distributions([_whole(request) for request in requests])

    def prepare_writing(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Batching:
        return Batching()

    def generate(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> list[tuple[str, int, bool]]:
        session, decode, name = self.loaded.model.session, partial(decoded, self.loaded.tokenizer), self.loaded.name
        ends = {*self._ends, self.tokenizer.eos}.__contains__
        return [written(_reader(session), prompt, settings, decode=decode, ends=ends, model=name) for prompt in prompts]

    def sample(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> list[Drawn]:
        session, ends, name = self.loaded.model.session, self._ends.__contains__, self.loaded.name
        return [drawn(_reader(session), prompt, settings, ends=ends, model=name) for prompt in prompts]


def _whole(request: Request) -> Request:
    return request if request.follows is None else replace(request, ids=np.append(request.ids, request.follows))


class OnnxModel(nn.Module):
    """A session as a causal model of torch, without parameters."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.dtype: torch.dtype = getattr(torch, session.dtype.name)

    def forward(self, input_ids: Tensor) -> tuple[Tensor]:
        """Return the logits after each token, shape ``[batch, tokens, vocabulary]``."""
        return (torch.from_numpy(self.session.read(input_ids.numpy())[0]),)


class _Loaded(LoadedModel):
    @property
    def vocabulary_size(self) -> int:
        return int(self.model.session.vocabulary_size)


def _reader(session: Session) -> Callable[[Sequence[int]], NDArray[Any]]:
    """Return a function that reads on, with keys and values kept if the model was exported with them."""
    state: State | None = None
    so_far: list[int] = []

    def read(ids: Sequence[int]) -> NDArray[Any]:
        nonlocal state
        if session.has_past:
            logits, state = session.read(np.array([ids], dtype=np.int64), state, keep=True)
        else:
            so_far.extend(ids)
            logits, _ = session.read(np.array([so_far], dtype=np.int64))
        next_logits: NDArray[Any] = logits[0, -1]
        return next_logits

    return read
