"""onnxruntime's library: a session that reads token ids, and what onnxruntime says when it fails.

The inputs and outputs are those that optimum names. Nothing else of this package imports onnxruntime.
"""

from __future__ import annotations

__all__ = ["Session", "State", "library"]

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_lmgate.arrays import Ints
from pytest_lmgate.backends.base import OutOfMemory
from pytest_lmgate.backends.memory import says_out_of_memory
from pytest_lmgate.backends.onnx.options import LoadOptions
from pytest_lmgate.errors import EngineError, ModelError

# Older ones open data outside of a model's folder, which its address does not hold.
_OLDEST = (1, 24)
_TYPES = {
    "tensor(int64)": np.int64, "tensor(int32)": np.int32,
    "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64,
}  # fmt: skip
_READ = ("input_ids", "attention_mask", "position_ids")
_PAST, _PRESENT = "past_key_values.", "present."
_CUT = ("protobuf parsing failed", "no graph was found", "out of bounds or can not be read")
_EXPORT = "export it with optimum-cli export onnx --task text-generation-with-past"


@functools.cache
def library(model: str) -> Any:
    """Return the module ``onnxruntime``, which the model of this name needs.

    Raises:
        ModelError: It is not installed, or too old.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelError(
            f"model {model!r}: an ONNX model runs with onnxruntime, which cannot be imported ({error}): "
            "pip install 'pytest-lmgate[onnx]'"
        ) from error
    version = tuple(int(part) for part in re.findall(r"\d+", onnxruntime.__version__)[:2])
    if version < _OLDEST:
        raise ModelError(
            f"model {model!r}: expected onnxruntime {'.'.join(map(str, _OLDEST))} or newer, got "
            f"{onnxruntime.__version__}: pip install -U onnxruntime"
        )
    return onnxruntime


@dataclass(frozen=True)
class State:
    """Keys and values of the tokens that a session has read, by the names of its inputs."""

    length: int
    past: dict[str, NDArray[Any]]


class Session:
    """An ONNX model that is loaded.

    Attributes:
        has_past: Whether keys and values can be kept from one token to the next.
        dtype: Of the logits.
        vocabulary_size: Logits per token.

    Raises:
        ModelError: onnxruntime cannot load the file, or it is no causal model as optimum exports one.
        EngineError: The weights do not fit.
    """

    def __init__(self, name: str, file: Path, options: LoadOptions) -> None:
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
                f"model {name!r}: the device {options.device!r} cannot be used: onnxruntime took {got} in place of "
                f"{options.provider}; say device: cpu, or install the libraries that {options.provider} needs"
            )
        self._inputs = {each.name: each for each in self._session.get_inputs()}
        outputs = {each.name: each for each in self._session.get_outputs()}
        self._present = {past: past.replace(_PAST, _PRESENT, 1) for past in self._inputs if past.startswith(_PAST)}
        self._require_known(outputs)
        self.has_past = bool(self._present)
        self.dtype = np.dtype(_TYPES[outputs["logits"].type])
        size = outputs["logits"].shape[-1]
        self.vocabulary_size = size if isinstance(size, int) else self.read(np.zeros((1, 1), np.int64))[0].shape[-1]

    def read(self, ids: Ints, state: State | None = None, *, keep: bool = False) -> tuple[NDArray[Any], State]:
        """Read tokens behind those that were read.

        Args:
            ids: Token ids, shape ``[batch, tokens]``; padding is read like any other token.
            state: Of the tokens before them; None to begin.
            keep: Whether the state is wanted.

        Returns:
            The logits after each token, shape ``[batch, tokens, vocabulary]``, and the state after the last, which is
            empty unless it is wanted.

        Raises:
            OutOfMemory: The tokens do not fit.
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
        fed = {name: fed[name].astype(_TYPES[each.type], copy=False) for name, each in self._inputs.items()}
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
                    f"{self._file.name}, got {list(logits.shape)}"
                )
            return logits, State(begin + tokens, dict(zip(self._present, present, strict=False)))
        raise OutOfMemory("the device", details)

    def _empty(self, batch: int) -> dict[str, NDArray[Any]]:
        """Return keys and values of no token; of the axes whose length is not fixed, the first is the batch's."""
        found = {}
        for name in self._present:
            first, *rest = self._inputs[name].shape
            shape = [first if isinstance(first, int) else batch, *(n if isinstance(n, int) else 0 for n in rest)]
            found[name] = np.zeros(shape, _TYPES[self._inputs[name].type])
        return found

    def _require_known(self, outputs: dict[str, Any]) -> None:
        where = f"model {self._name!r}: {self._file.name}"
        if unknown := [name for name in self._inputs if name not in (*_READ, *self._present)]:
            raise ModelError(f"{where} wants inputs that this engine cannot give it ({', '.join(unknown)}): {_EXPORT}")
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
        for each in (*self._inputs.values(), outputs["logits"]):
            if each.type not in _TYPES:
                raise ModelError(
                    f"{where}: {each.name} is a {each.type}, which numpy does not have: export it with --dtype fp32"
                )

    def _failed_to_load(self, error: Exception) -> ModelError | EngineError:
        reason = _reason(error)
        if _is_out_of_memory(error):
            return EngineError(f"model {self._name!r}: no memory to load {self._file}: {reason}")
        hint = "; the file is cut short or damaged: copy it again" if any(c in reason.lower() for c in _CUT) else ""
        if "does not exist" in reason:
            hint = "; copy the data file into the folder of the .onnx file"
        if "not a registered function" in reason:
            hint = "; libraries of custom operators are not supported"
        return ModelError(f"model {self._name!r}: onnxruntime cannot load {self._file}: {reason}{hint}")


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or says_out_of_memory(str(error))


def _reason(error: Exception) -> str:
    """Return what onnxruntime says, in one line, without its own numbers and places."""
    words = " ".join(str(error).split()) or type(error).__name__
    words = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", words)
    return re.sub(r"\S+\.(cc|h):\d+ \S+ ", "", words).rstrip(".")
