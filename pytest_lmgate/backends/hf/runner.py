"""A transformers model that is loaded: scoring, comparing and generating by what was tried out on it."""

from __future__ import annotations

__all__ = ["TransformersRunner"]

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.backends.base import Batching, Company, Runner
from pytest_lmgate.backends.divergence import Logits
from pytest_lmgate.backends.hf.budget import token_budget
from pytest_lmgate.backends.hf.decoding import Decoding
from pytest_lmgate.backends.hf.likelihood.forward import evaluation_mode
from pytest_lmgate.backends.hf.likelihood.head import prove_head
from pytest_lmgate.backends.hf.likelihood.scoring import Scorer
from pytest_lmgate.backends.hf.models.loading import LoadedModel, quiet, tokenizer_facts
from pytest_lmgate.backends.hf.trials.company import find_company, has_same_numbers
from pytest_lmgate.backends.memory import release, sent, within_memory
from pytest_lmgate.backends.vocabulary import check_ids
from pytest_lmgate.config.arguments.generation import GenerationSettings
from pytest_lmgate.data.requests.requests import Request, Requests, by_request
from pytest_lmgate.data.tokenization.prompting import PromptIds
from pytest_lmgate.errors import ModelError


class TransformersRunner(Runner):
    """Reads requests: right-padded, without an attention mask unless there is an encoder.

    A causal model's states do not depend on what comes after them, which is proven on the model at hand, so padding
    cannot change a number, and the fast attention kernels stay available.

    Args:
        loaded: The model, with its tokenizer.
        context: Tokens that it can read at once; None for no limit.
    """

    def __init__(self, loaded: LoadedModel, context: int | None) -> None:
        self.loaded, self._context = loaded, context
        self._scorer: Scorer | None = None
        self._decoding: Decoding | None = None
        self.tokenizer = tokenizer_facts(loaded.tokenizer)

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Switch dropout, gradients and the libraries' chatter off; kernels that ask for no device get the model's."""
        device = self.loaded.device
        own = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
        with own, torch.inference_mode(), evaluation_mode(self.loaded.model), quiet():
            yield

    def prepare(self, requests: Requests, *, compare: bool = False) -> Batching:
        """Try the model's head out, and find out which requests may share a batch.

        Raises:
            ModelError: It is not deterministic, or a token id is beyond its vocabulary.
        """
        if self.loaded.vocabulary_size is not None:
            check_ids(requests.highest, self.loaded.vocabulary_size, self.loaded.name)
        return within_memory(self.loaded.device, lambda: self._prepare(requests, compare))

    def score(self, requests: Sequence[Request]) -> list[Floats]:
        """Return the NLLs of the requests' targets; see `Scorer.launch`."""
        return self.begin(requests)()

    def begin(self, requests: Sequence[Request]) -> Callable[[], list[Floats]]:
        """Launch the reading of requests, and return what waits for the NLLs of their targets."""
        device = self.loaded.device
        wait = within_memory(device, lambda: self._launched(requests))
        return lambda: by_request(within_memory(device, wait).numpy(), requests)

    @property
    def epsilon(self) -> float:  # type: ignore[override]
        """Of the model's dtype."""
        dtype = getattr(self.loaded.model, "dtype", torch.float32)
        return float(torch.finfo(dtype).eps) if dtype.is_floating_point else 0.0

    def probe(self, rows: Sequence[Ints]) -> list[Floats]:
        """Return the logits after each token of many tokens; see `Scorer.some_logits`."""
        assert self._scorer is not None
        scorer, ids = self._scorer, sent(torch.from_numpy(np.stack(rows)), self.loaded.device)
        found = within_memory(self.loaded.device, lambda: scorer.some_logits(self.loaded.model, ids).float().cpu())
        return list(found.numpy())

    def distributions(self, requests: Sequence[Request]) -> Logits:
        """Return the logits that predict the requests' targets, as hidden states where the head could be proven."""
        return within_memory(self.loaded.device, lambda: self._distributions(requests))

    def prepare_writing(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Batching:
        """Try out which prompts may share a batch.

        Raises:
            ModelError: The model does not generate.
        """
        if not callable(getattr(self.loaded.model, "generate", None)):
            kind = type(self.loaded.model).__name__
            raise ModelError(f"model {self.loaded.name!r}: expected one that generates, got {kind}")
        self._decoding = decoding = Decoding(self.loaded, settings)
        return within_memory(self.loaded.device, lambda: decoding.batching(prompts, self._context))

    def generate(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> list[tuple[str, int]]:
        """Write one text for each prompt; see `Decoding.texts`."""
        assert self._decoding is not None
        decoding = self._decoding
        return within_memory(
            self.loaded.device,
            lambda: decoding.texts([prompt.ids for prompt in prompts], [prompt.row for prompt in prompts]),
        )

    def close(self) -> None:
        """Let go of the model, and give its memory back."""
        device = self.loaded.device
        del self.loaded, self._scorer, self._decoding
        release(device)

    def _prepare(self, requests: Requests, compare: bool) -> Batching:
        loaded = self.loaded
        longest = requests.make(int(requests.order[0]))
        batch = _Batch(loaded, [longest])
        self._scorer = scorer = Scorer(loaded.name, prove_head(batch.model, batch.ids[0]))
        # Logits held whole for a comparison are there twice: as the model gives them, and those of the targets; and so
        # may the other model's be.
        vocabulary = scorer.plain_vocabulary(loaded) * (4 if compare else 1)
        tokens = int(requests.lengths[requests.order[0]])
        budget = token_budget(loaded.device, vocabulary, self._activation_bytes(batch, tokens))
        if longest.source is not None:
            company, differs = self._company_of_pairs(requests)
        elif requests.may_pad:
            company, differs = self._company_of_windows(requests, budget)
        else:
            company, differs = self._company_of_copies(requests, budget)
        remark = ""
        if differs:
            remark = (
                f"model {loaded.name!r}: the numbers of a row depend on the other rows of its batch, so each row is "
                f"read with {company.value} (slower)"
            )
        is_double, is_ahead = scorer.dtype(loaded) == torch.float64, loaded.device.type == "cuda" and not compare
        reads_once = longest.source is None and not compare
        return Batching(budget, company, remark, is_double, is_ahead=is_ahead, reads_once=reads_once)

    def _activation_bytes(self, batch: _Batch, tokens: int) -> float | None:
        """Return the memory that a GPU takes for each token of a batch while the model reads.

        None where that is not known, or where whole logits, which have a budget of their own, would be most of it.
        """
        device = self.loaded.device
        assert self._scorer is not None
        if device.type != "cuda" or self._scorer.head is None:
            return None
        read = functools.partial(self._scorer.states, batch.model, batch.ids, batch.rows, batch.columns)
        read()  # what a library sets up and keeps is no part of it
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        read()
        return (torch.cuda.max_memory_allocated(device) - before) / tokens

    def _company_of_windows(self, requests: Requests, budget: int) -> tuple[Company, bool]:
        order, lengths = requests.order, requests.lengths
        if len(order) < 2 or lengths.max() < 4:
            return Company.ANY, False
        rows = [requests.make(int(index)).ids for index in order[:2]]
        return self._found_company(rows[0], rows[1], lengths[order], budget)

    def _company_of_copies(self, requests: Requests, budget: int) -> tuple[Company, bool]:
        longest, other = (requests.make(int(requests.order[at])).ids for at in (0, -1))
        # Two copies of one piece differ by a token or two, which says little of what a batch shares.
        if len(other) == len(longest) and (other != longest).sum() <= 2:
            other = longest[::-1].copy()
        company, differs = self._found_company(longest, other, requests.lengths[requests.order[:1]], budget)
        # Copies of one length go together anyway.
        return (Company.ALONE if company is Company.ALONE else Company.ANY), differs

    def _found_company(self, longest: Ints, other: Ints, lengths: Ints, budget: int) -> tuple[Company, bool]:
        def read(rows: Sequence[Ints]) -> list[Floats]:
            return self.score([Request(row, np.arange(len(row) - 1), row[1:]) for row in rows])

        return find_company(read, longest, other, lengths, budget=budget, loaded=self.loaded)

    def _company_of_pairs(self, requests: Requests) -> tuple[Company, bool]:
        """Try out whether a short pair has the same NLLs beside the longest one as alone."""
        if len(requests.order) < 2:
            return Company.ANY, False
        longest, short = (requests.make(int(requests.order[at])) for at in (0, -1))
        same = has_same_numbers(self.score, short, [longest], self.loaded)
        return (Company.ANY, False) if same else (Company.ALONE, same is not None)

    def _distributions(self, requests: Sequence[Request]) -> Logits:
        assert self._scorer is not None
        batch = _Batch(self.loaded, requests)
        found = Logits(self._scorer.states(batch.model, batch.ids, batch.rows, batch.columns), self._scorer.head)
        check_ids(int(batch.targets.max()), found.vocabulary_size, self.loaded.name)
        return found

    def _launched(self, requests: Sequence[Request]) -> Callable[[], Tensor]:
        assert self._scorer is not None
        batch = _Batch(self.loaded, requests)
        return self._scorer.launch(batch.model, batch.ids, batch.rows, batch.columns, batch.targets)


class _Batch:
    """Some requests as the model reads them.

    Attributes:
        model: The model; of an encoder-decoder, on these sources.
        ids: Token ids, shape ``[requests, tokens]``, padded on the right, on the model's device.
        rows: The row in which each target is predicted, shape ``[targets]``.
        columns: The position whose state predicts it, shape ``[targets]``.
        targets: Token ids, shape ``[targets]``.
    """

    def __init__(self, loaded: LoadedModel, requests: Sequence[Request]) -> None:
        rows = [torch.from_numpy(each.ids) for each in requests]
        self.model = loaded.model
        if requests[0].source is not None:
            rows = [_shifted(loaded, row) for row in rows]
            sources = [torch.from_numpy(each.source) for each in requests]
            mask = sent(_padded([torch.ones_like(source) for source in sources]), loaded.device)
            self.model = _Decoder(loaded.model, sent(_padded(sources), loaded.device), mask)
        self.ids = sent(_padded(rows), loaded.device)
        counts = torch.tensor([len(each.targets) for each in requests])
        self.rows = torch.repeat_interleave(torch.arange(len(requests)), counts)
        self.columns = torch.from_numpy(np.concatenate([each.at for each in requests]))
        self.targets = torch.from_numpy(np.concatenate([each.targets for each in requests]))


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


def _shifted(loaded: LoadedModel, labels: Tensor) -> Tensor:
    """What the decoder reads for some labels, shape ``[target tokens]``, as the model itself makes it in training."""
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
    return pad_sequence(list(rows), batch_first=True)
