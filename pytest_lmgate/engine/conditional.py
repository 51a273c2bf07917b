"""Likelihood of targets given sources, for encoder-decoder models: one pass over a source and its target.

Labels are the target's tokens as the tokenizer makes them, special tokens and EOS included, and what the decoder reads
is the same shifted right, as the model itself does in training (``model(input_ids, labels=labels)``). Sources are
padded on the right under an attention mask; targets too, where a causal decoder does not look.
"""

from __future__ import annotations

__all__ = ["Pair", "encode_pairs", "measure_conditional_nll"]

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pytest_lmgate.data.prompts import Prompt
from pytest_lmgate.data.repeats import repeats
from pytest_lmgate.engine.company import Company, has_same_numbers
from pytest_lmgate.engine.forward import evaluation_mode
from pytest_lmgate.engine.halving import failure, run_halving
from pytest_lmgate.engine.likelihood import Checkpointing, Progress
from pytest_lmgate.engine.loading import LoadedModel, quiet
from pytest_lmgate.engine.memory import token_budget
from pytest_lmgate.engine.prompting import PromptEncoder
from pytest_lmgate.engine.scoreboard import Scoreboard
from pytest_lmgate.engine.scoring import Scorer, check_ids
from pytest_lmgate.errors import DataError, LmgateError, ModelError

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Pair:
    """A row.

    Attributes:
        source: Token ids that the encoder reads, shape ``[source tokens]``.
        target: Token ids that are scored, shape ``[target tokens]``.
    """

    source: Ints
    target: Ints


def encode_pairs(
    loaded: LoadedModel, sources: Sequence[Prompt], targets: Sequence[str], *, dataset: str, context: int | None
) -> list[Pair]:
    """Tokenize sources and targets, each with the special tokens that the tokenizer gives it.

    Args:
        loaded: An encoder-decoder model.
        sources: One per row.
        targets: Likewise.
        dataset: Name of the dataset, for messages.
        context: Tokens that source and target may have each; None for no limit.

    Raises:
        DataError: A source or a target has no token, or more than the model can read.
        ModelError: A chat is asked for and the tokenizer has no chat template.
    """
    encoder = PromptEncoder(loaded, dataset, context, f"context {context}", "; shorten it")
    pairs = []
    with quiet():
        for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
            labels = list(loaded.tokenizer(text_target=target)["input_ids"])
            if not labels:
                raise DataError(f"dataset {dataset!r}: row {row}: expected a target, got one without a token")
            if context is not None and len(labels) > context:
                raise DataError(
                    f"dataset {dataset!r}: row {row}: the target has {len(labels):,} tokens, but the model "
                    f"{loaded.name!r} can write {context:,}; shorten it"
                )
            pairs.append(Pair(np.array(encoder.encode(source, row)), np.array(labels)))
    return pairs


def measure_conditional_nll(
    loaded: LoadedModel,
    pairs: Sequence[Pair],
    *,
    dataset: str,
    batch_size: int | str = "auto",
    report: Callable[[Progress], None] = lambda _: None,
    checkpointing: Checkpointing | None = None,
    remark: Callable[[str], None] = lambda _: None,
) -> NDArray[np.float64]:
    """Return the NLL of each target token given the source and the target's tokens before it, in nats, pair after pair.

    Pairs with the same source and target are read once.

    Args:
        loaded: An encoder-decoder model.
        pairs: Rows.
        dataset: Name of the dataset, for messages.
        batch_size: Pairs per batch at most, or ``auto`` for a budget of tokens.
        report: Called after each batch.
        checkpointing: Where interrupted work is kept.
        remark: Told in one sentence what the session's summary should say of the model.

    Returns:
        Shape ``[targets]``.

    Raises:
        ModelError: A token id is beyond the vocabulary, nothing says which token the decoder begins with, or the model
            is not deterministic.
        NonFiniteError: A log-likelihood is NaN or infinite.
        EngineError: Out of memory with a single pair, or the model itself failed.
    """
    offsets = np.concatenate([[0], np.cumsum([len(pair.target) for pair in pairs])])

    def describe(target: int) -> str:
        row = int(np.searchsorted(offsets, target, side="right")) - 1
        return f"target token {target - int(offsets[row]):,} in row {row}"

    board = Scoreboard(
        int(offsets[-1]),
        model=loaded.name,
        dataset=dataset,
        describe=describe,
        report=report,
        checkpointing=checkpointing,
    )
    with torch.inference_mode(), evaluation_mode(loaded.model), quiet():
        reader = _Reader(loaded, pairs, batch_size, remark)
        # A pair is scored whole or not at all.
        for rows in reader.batches(lambda row: board.is_scored(int(offsets[row]))):
            parts = np.split(reader.nll(rows), np.cumsum([len(pairs[row].target) for row in rows])[:-1])
            each = [(equal, part) for row, part in zip(rows, parts, strict=True) for equal in reader.equal(row)]
            at = np.concatenate([np.arange(offsets[row], offsets[row + 1]) for row, _ in each])
            board.put(at, np.concatenate([part for _, part in each]), read=sum(map(reader.tokens, rows)))
    return board.nll


class _Decoder:
    """An encoder-decoder model on fixed sources, as a model of the tokens that its decoder reads."""

    def __init__(self, model: Any, sources: Tensor, mask: Tensor) -> None:
        self._model, self._sources, self._mask = model, sources, mask
        self.config, self.get_output_embeddings = getattr(model, "config", None), model.get_output_embeddings

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> Any:
        return self._model(
            input_ids=self._sources, attention_mask=self._mask, decoder_input_ids=input_ids, use_cache=use_cache
        )

    __call__ = forward


class _Reader:
    """One model and the pairs it has to read."""

    def __init__(
        self, loaded: LoadedModel, pairs: Sequence[Pair], batch_size: int | str, remark: Callable[[str], None]
    ) -> None:
        self._loaded, self._pairs = loaded, pairs
        self._repeats = repeats((pair.source.tobytes(), pair.target.tobytes()) for pair in pairs)
        if loaded.vocabulary_size is not None:
            highest = max(int(max(pair.source.max(), pair.target.max())) for pair in pairs)
            check_ids(highest, loaded.vocabulary_size, loaded.name)
        longest = max(self._repeats, key=lambda row: len(pairs[row].target))
        try:
            decoder, inputs = self._decoder([longest])
            self._scorer = Scorer.proven(decoder, inputs[0], name=loaded.name)
        except LmgateError:
            raise
        except Exception as error:
            what = f"row {longest}, {self.tokens(longest):,} tokens"
            raise failure(error, device=loaded.device, name=loaded.name, what=what) from error
        self._budget = token_budget(loaded.device, 0 if self._scorer.is_streamed else (loaded.vocabulary_size or 0))
        self._most = batch_size if isinstance(batch_size, int) else None
        if len(self._repeats) > 1 and self._most != 1 and not self._share_batch(longest):
            self._most = 1
            remark(Company.ALONE.remark(loaded.name))

    def tokens(self, row: int) -> int:
        """Tokens of a pair."""
        return len(self._pairs[row].source) + len(self._pairs[row].target)

    def equal(self, row: int) -> list[int]:
        """Return the rows that are equal to one that is yielded by `batches`, itself included."""
        return self._repeats[row]

    def batches(self, is_scored: Callable[[int], bool]) -> Iterator[list[int]]:
        """Yield rows of like length together, the longest first; of equal rows the first.

        What a batch holds does not depend on what else is still to do.
        """
        order = sorted(self._repeats, key=lambda row: (-self.tokens(row), row))
        begin = 0
        while begin < len(order):
            size = max(1, self._budget // self.tokens(order[begin]))
            rows = order[begin : begin + (size if self._most is None else min(size, self._most))]
            begin += len(rows)
            if todo := [row for row in rows if not is_scored(row)]:
                yield todo

    def nll(self, rows: Sequence[int]) -> NDArray[np.float64]:
        """Return the NLLs of the rows' targets, one row after the other."""
        longest = max(map(self.tokens, rows))

        def shrink(count: int) -> None:
            self._budget = max(1, min(self._budget, count * longest))

        parts = run_halving(
            rows,
            self._run,
            device=self._loaded.device,
            name=self._loaded.name,
            what=lambda some: (
                f"row {some[0]}, {self.tokens(some[0]):,} tokens"
                + (f", and {len(some) - 1} more" if len(some) > 1 else "")
            ),
            shrink=shrink,
        )
        return np.concatenate(parts)

    def _share_batch(self, longest: int) -> bool:
        """Try out whether a short row has the same NLLs beside the longest as alone; see `engine.company`."""

        def read(rows: Sequence[int]) -> list[NDArray[np.float64]]:
            return np.split(self.nll(rows), np.cumsum([len(self._pairs[row].target) for row in rows])[:-1])

        short = min((row for row in self._repeats if row != longest), key=self.tokens)
        dtype = getattr(self._loaded.model, "dtype", torch.float32)
        return has_same_numbers(read, short, [longest], dtype=dtype, name=self._loaded.name)

    def _run(self, rows: Sequence[int]) -> NDArray[np.float64]:
        decoder, inputs = self._decoder(rows)
        targets = [torch.from_numpy(self._pairs[row].target) for row in rows]
        # The state at a position predicts the label there: the shift is in what the decoder reads.
        columns = torch.cat([torch.arange(len(target)) for target in targets])
        which = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor([len(target) for target in targets]))
        return self._scorer.nll(decoder, inputs, which, columns, torch.cat(targets)).cpu().numpy()

    def _decoder(self, rows: Sequence[int]) -> tuple[_Decoder, Tensor]:
        """Return the model on some rows' sources, and what its decoder reads."""
        device = self._loaded.device
        sources = [torch.from_numpy(self._pairs[row].source) for row in rows]
        inputs = [_shifted(self._loaded, torch.from_numpy(self._pairs[row].target)) for row in rows]
        mask = _padded([torch.ones_like(source) for source in sources])
        decoder = _Decoder(self._loaded.model, _padded(sources).to(device), mask.to(device))
        return decoder, _padded(inputs).to(device)


def _shifted(loaded: LoadedModel, labels: Tensor) -> Tensor:
    """What the decoder reads for some labels, shape ``[target tokens]``, as the model itself makes it."""
    model = loaded.model
    if hasattr(model, "prepare_decoder_input_ids_from_labels"):
        shifted: Tensor = model.prepare_decoder_input_ids_from_labels(labels=labels[None])[0]
        return shifted
    start = getattr(model.config, "decoder_start_token_id", None)
    if start is None:
        raise ModelError(
            f"model {loaded.name!r}: nothing says which token its decoder begins with; set decoder_start_token_id in "
            "its config.json"
        )
    return torch.cat([torch.tensor([start]), labels[:-1]])


def _padded(rows: Sequence[Tensor]) -> Tensor:
    """Pad on the right, with a token id that is never read: shape ``[batch, tokens]``."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
