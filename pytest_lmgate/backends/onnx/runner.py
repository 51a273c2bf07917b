"""An ONNX model that is loaded: read like any model of torch, by a module that hands its tokens to a session.

So the trials, the batches and the likelihoods are those of the engine transformers: a model that looks ahead is
refused, and rows whose numbers depend on their company run with rows of their length, or alone. Texts are written one
after the other.
"""

from __future__ import annotations

__all__ = ["OnnxRunner"]

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pytest_lmgate.arrays import Floats
from pytest_lmgate.backends.base import Batching
from pytest_lmgate.backends.divergence import Logits
from pytest_lmgate.backends.hf.models.loading import LoadedModel, decoded
from pytest_lmgate.backends.hf.runner import TransformersRunner
from pytest_lmgate.backends.onnx.session import Session, State
from pytest_lmgate.backends.writing import written
from pytest_lmgate.config.arguments.generation import GenerationSettings
from pytest_lmgate.data.requests.requests import Request, Requests
from pytest_lmgate.data.tokenization.prompting import PromptIds


class OnnxRunner(TransformersRunner):
    """Reads requests and writes texts.

    Args:
        name: The model's name, for messages.
        session: The model.
        tokenizer: Its tokenizer, of transformers.
        ends: Ids of the tokens that end a text.
        context: Tokens that it can read at once; None for no limit.
    """

    def __init__(self, name: str, session: Session, tokenizer: Any, ends: Collection[int], context: int | None) -> None:
        super().__init__(_Loaded(name, OnnxModel(session), tokenizer, torch.device("cpu")), context)
        self._ends = ends

    def prepare(self, requests: Requests, *, compare: bool = False) -> Batching:
        """Prepare as for transformers; windows that differ in their last token alone do not read the same here."""
        batching = super().prepare(requests, compare=compare)
        is_whole = requests.make(int(requests.order[0])).follows is not None
        return replace(batching, reads_once=batching.reads_once and not is_whole)

    def begin(self, requests: Sequence[Request]) -> Callable[[], list[Floats]]:
        """Score requests, with the last token of each window read as the protocol's own program does.

        It predicts nothing, but the int8 activations of all tokens that are read at once share a scale.
        """
        return super().begin([_whole(request) for request in requests])

    def distributions(self, requests: Sequence[Request]) -> Logits:
        """Return the logits that predict the requests' targets, the windows read whole; see `begin`."""
        return super().distributions([_whole(request) for request in requests])

    def prepare_writing(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Batching:
        """Return how many prompts make a batch; they are written one after the other."""
        return Batching()

    def generate(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> list[tuple[str, int]]:
        """Write one text for each prompt, one after the other.

        Raises:
            NonFiniteError: The logits are NaN or infinite.
            OutOfMemory: A prompt with its text does not fit.
        """
        session, text = self.loaded.model.session, partial(decoded, self.loaded.tokenizer)
        return [
            written(_reader(session), prompt, settings, text=text, ends=self._ends.__contains__, model=self.loaded.name)
            for prompt in prompts
        ]


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
        """Logits per token, which is all that a session tells."""
        return int(self.model.session.vocabulary_size)


def _reader(session: Session) -> Callable[[Sequence[int]], NDArray[Any]]:
    """Return what reads a text on, with keys and values kept where the model was exported so."""
    state: State | None = None
    so_far: list[int] = []

    def read(ids: Sequence[int]) -> NDArray[Any]:
        nonlocal state
        if session.has_past:
            logits, state = session.read(np.array([ids], dtype=np.int64), state, keep=True)
        else:
            so_far.extend(ids)
            logits, _ = session.read(np.array([so_far], dtype=np.int64))
        found: NDArray[Any] = logits[0, -1]
        return found

    return read
