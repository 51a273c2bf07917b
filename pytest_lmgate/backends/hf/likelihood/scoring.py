"""NLLs of targets at some positions of a batch: by the head where it could be proven, else from the model's logits."""

from __future__ import annotations

__all__ = ["Scorer"]

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pytest_lmgate.backends.hf.likelihood.forward import logits_of, repeatable, run
from pytest_lmgate.backends.hf.likelihood.head import VocabularyHead, capture_hidden
from pytest_lmgate.backends.hf.likelihood.rotary import forget_lengths
from pytest_lmgate.backends.hf.likelihood.streaming import launch_nll
from pytest_lmgate.backends.hf.models.loading import LoadedModel
from pytest_lmgate.backends.memory import sent, wide
from pytest_lmgate.backends.vocabulary import check_ids

# Logits upcast at a time where they are held whole: 128 MiB of float64.
_LOGITS = 2**24
# Logits of a position that `Scorer.some_logits` returns: a changed hidden state changes them all.
_SOME = 4096


@dataclass(frozen=True)
class Scorer:
    """How one model's targets are scored.

    Attributes:
        name: The model's name, for messages.
        split: Its head and the module whose input that takes; None where the model's own logits must be used.
    """

    name: str
    split: tuple[VocabularyHead, nn.Module] | None

    @property
    def head(self) -> VocabularyHead | None:
        """The head; None where the model's own logits must be used."""
        return None if self.split is None else self.split[0]

    def dtype(self, loaded: LoadedModel) -> torch.dtype:
        """Dtype that logits are computed in."""
        return loaded.dtype if self.head is None else self.head.dtype

    def plain_vocabulary(self, loaded: LoadedModel) -> int:
        """Logits per token where they are held whole; 0 where they are streamed."""
        return (loaded.vocabulary_size or 0) if self.head is None else 0

    def launch(self, model: Any, ids: Tensor, rows: Tensor, columns: Tensor, targets: Tensor) -> Callable[[], Tensor]:
        """Begin to compute the NLL of each target.

        Args:
            model: In evaluation mode.
            ids: What it reads, on its device, shape ``[batch, tokens]``.
            rows: The row in which each target is predicted, shape ``[targets]``.
            columns: The position whose state predicts it, shape ``[targets]``.
            targets: Token ids, shape ``[targets]``, on the host.

        Returns:
            A function that waits for the NLLs in nats, shape ``[targets]``, float64, on the host.

        Raises:
            ModelError: A token id is beyond the vocabulary, or the model is not deterministic.
        """
        if self.head is None:
            logits = repeatable(lambda: self._read(model, ids), name=self.name)
            check_ids(int(targets.max()), logits.shape[-1], self.name)
            nll = _plain_nll(logits, rows, columns, targets)
            return lambda: nll.cpu().double()
        check_ids(int(targets.max()), self.head.vocabulary_size, self.name)
        return launch_nll(self.states(model, ids, rows, columns), targets, self.head)

    def states(self, model: Any, ids: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the head's input at some positions of ids, as in `launch`, shape ``[positions, hidden]``.

        Where the model's own logits must be used, these are returned, shape ``[positions, vocabulary]``.
        """
        found = repeatable(lambda: self._read(model, ids), name=self.name)
        return found[sent(rows, found.device), sent(columns, found.device)]

    def some_logits(self, model: Any, ids: Tensor) -> Tensor:
        """Return logits after each token, shape ``[batch, tokens, up to 4096]``, spread evenly over the vocabulary.

        Args:
            model: In evaluation mode.
            ids: Token ids on its device, shape ``[batch, tokens]``.

        Raises:
            ModelError: The model is not deterministic.
        """
        found = repeatable(lambda: self._read(model, ids), name=self.name)
        if self.head is None:
            return found[..., :: -(-found.shape[-1] // _SOME)]
        head = self.head.every(-(-self.head.vocabulary_size // _SOME))
        hidden, size = found.flatten(0, 1).to(head.weight), head.vocabulary_size
        buffer = torch.empty(len(hidden) * size, dtype=head.dtype, device=hidden.device)
        return head.tile(hidden, 0, size, buffer).view(*ids.shape, size)

    def _read(self, model: Any, ids: Tensor) -> Tensor:
        forget_lengths(model, ids)
        if self.split is None:
            return logits_of(model, ids)
        with capture_hidden(self.split[1]) as captured:
            run(model, ids)
        return captured.pop()


def _plain_nll(logits: Tensor, rows: Tensor, columns: Tensor, targets: Tensor) -> Tensor:
    """NLLs from the model's own logits, a few positions upcast at a time."""
    parts = []
    step = max(1, _LOGITS // logits.shape[-1])
    device = logits.device
    for row, column, target in zip(rows.split(step), columns.split(step), targets.split(step), strict=True):
        some = torch.log_softmax(logits[sent(row, device), sent(column, device)].to(wide(device)), -1)
        parts.append(-some.gather(-1, sent(target, device)[:, None])[:, 0])
    return torch.cat(parts)
