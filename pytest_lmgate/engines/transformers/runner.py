"""A transformers model that is loaded: it scores, compares and generates, in batches that a trial found safe.

In most models a row has the same numbers in any batch. Not in all: rotary frequencies chosen by the longest row
(``longrope``, dynamic scaling), one int8 scale for a whole batch, experts whose capacity the batch shares, attention
that looks at padding (ProphetNet). Their rows run alone, or only with rows of their length.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pytest_lmgate.arrays import Floats, Ints
from pytest_lmgate.engines.base import Batching, BatchPolicy, Drawn, OutOfMemory, Runner, check_ids
from pytest_lmgate.engines.devices import release, sent, within_memory
from pytest_lmgate.engines.logits import Logits
from pytest_lmgate.engines.tokenizers import quiet, tokenizer_facts
from pytest_lmgate.engines.transformers.beginnings import LEAST_SAVED, NO_CACHE, Beginnings, order_by_beginning
from pytest_lmgate.engines.transformers.decoding import Decoding
from pytest_lmgate.engines.transformers.head import (
    Batch,
    Scorer,
    SplitHead,
    evaluation_mode,
    follows_length,
    is_head,
    launch_nll,
    not_deterministic,
    prove_head,
    split_head,
)
from pytest_lmgate.engines.transformers.loading import LoadedModel
from pytest_lmgate.errors import ModelError
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.windows.requests import Request, Requests, by_request
from pytest_lmgate.windows.tokens import PromptIds

# Of requests that share beginnings: how many are tried around a place, how many share a batch at most, and by how many
# nats their numbers may differ in float32.
_SHARING_TRIED, _MOST_SHARING, _SHARING_ROUNDING = 8, 512, 1e-5
# Passes of a batch whose requests share beginnings, which it reads itself.
_SHARING_PASSES = 4
# Tokens of a batch.
_CPU_TOKENS, _ACCELERATOR_TOKENS, _MOST_TOKENS = 2048, 16384, 65536
_PLAIN_LOGIT_BYTES = 2**28
# In addition to the tiles of logits, so that a measurement takes less than 1 GiB over the model itself.
_ACTIVATION_BYTES = 3 * 2**28
# Of the trial of batches: tokens of a row, and rows.
_TRIAL_TOKENS, _TRIAL_ROWS = 24, 4
# Of `Runner.proofs`: the transform of the head, and the longest row of the trials of rows beside a longer one, and
# together with others of their length.
_HEAD, _BESIDE, _TOGETHER = "head", "beside longer rows", "together with equal rows"
# Mean difference of the NLLs of a row, relative to their mean, that is rounding: eps of the dtype, and this at least.
# Measured on 29 architectures: 2e-7 in float32, 5e-4 in bfloat16 (eps 8e-3), 1.4e-4 in float16 (eps 1e-3).
_FLOAT32_ROUNDING = 1e-4


class TransformersRunner(Runner):
    """Reads requests: right-padded, without an attention mask unless there is an encoder.

    A causal model's states do not depend on later tokens, which a trial proves, so padding cannot change a number, and
    the fast attention kernels stay available.
    """

    rereads = False

    def __init__(self, loaded: LoadedModel, context: int | None) -> None:
        self.loaded, self._context = loaded, context
        self._scorer: Scorer | None = None
        self._has_head = False  # whether the head of the proofs was tried in this session
        self._beginnings: Beginnings | None = None  # where the requests of this measurement share theirs
        self._decoding: Decoding | None = None
        self.tokenizer = tokenizer_facts(loaded.tokenizer)

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Switch off dropout, gradients and the libraries' output; the model's GPU becomes the current one."""
        device = self.loaded.device
        device_context = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
        with device_context, torch.inference_mode(), evaluation_mode(self.loaded.model), quiet():
            yield

    def prepare(self, requests: Requests, *, compare: bool = False) -> Batching:
        if self.loaded.vocabulary_size is not None:
            check_ids(requests.highest, self.loaded.vocabulary_size, self.loaded.name)
        with within_memory(self.loaded.device):
            return self._prepare(requests, compare)

    def score(self, requests: Sequence[Request]) -> list[Floats]:
        return self.begin(requests)()

    def begin(self, requests: Sequence[Request]) -> Callable[[], list[Floats]]:
        device, scorer, shared = self.loaded.device, self._scorer, self._beginnings
        assert scorer is not None
        if requests[0].greedy:
            logits = self.distributions(requests)
            return lambda: by_request(
                logits.scored(np.concatenate([request.targets for request in requests])), requests
            )
        with within_memory(device):
            batch = _batch(self.loaded, requests)
            if scorer.head is None:
                launched = scorer.launch_plain(batch)
            else:
                check_ids(int(batch.targets.max()), scorer.head.vocabulary_size, scorer.name)
                states = batch.at(scorer.read(batch.model, batch.ids)) if shared is None else shared.states(requests)
                launched = launch_nll(states, batch.targets, scorer.head)

        def wait() -> list[Floats]:
            with within_memory(device):
                return by_request(launched().numpy(), requests)

        return wait

    @property
    def epsilon(self) -> float:  # type: ignore[override]
        dtype = getattr(self.loaded.model, "dtype", torch.float32)
        return float(torch.finfo(dtype).eps) if dtype.is_floating_point else 0.0

    def probe(self, rows: Sequence[Ints]) -> list[Floats]:
        assert self._scorer is not None
        scorer, ids = self._scorer, sent(torch.from_numpy(np.stack(rows)), self.loaded.device)
        with within_memory(self.loaded.device):
            return list(scorer.some_logits(self.loaded.model, ids).float().cpu().numpy())

    def distributions(self, requests: Sequence[Request]) -> Logits:
        scorer, shared = self._scorer, self._beginnings
        assert scorer is not None
        with within_memory(self.loaded.device):
            batch = _batch(self.loaded, requests)
            states = batch.at(scorer.read(batch.model, batch.ids)) if shared is None else shared.states(requests)
            logits = Logits(states, scorer.head)
            check_ids(int(batch.targets.max()), logits.vocabulary_size, self.loaded.name)
            return logits

    def prepare_writing(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> Batching:
        if not callable(getattr(self.loaded.model, "generate", None)):
            kind = type(self.loaded.model).__name__
            raise ModelError(f"model {self.loaded.name!r}: expected one that generates, got {kind}")
        self._decoding = decoding = Decoding(self.loaded, settings)
        with within_memory(self.loaded.device):
            return decoding.batching(prompts, self._context)

    def generate(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> list[tuple[str, int, bool]]:
        assert self._decoding is not None
        with within_memory(self.loaded.device):
            return self._decoding.texts([prompt.ids for prompt in prompts], [prompt.row for prompt in prompts])

    def sample(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> list[Drawn]:
        assert self._decoding is not None
        with within_memory(self.loaded.device):
            return self._decoding.drawn([prompt.ids for prompt in prompts], [prompt.row for prompt in prompts])

    def close(self) -> None:
        device = self.loaded.device
        del self.loaded, self._scorer, self._beginnings, self._decoding
        release(device)

    def _prepare(self, requests: Requests, compare: bool) -> Batching:
        loaded, self._beginnings = self.loaded, None
        longest = requests.make(int(requests.order[0]))
        batch = _batch(loaded, [longest])
        self._scorer = scorer = Scorer(loaded.name, self._split(batch))
        # A comparison holds whole logits twice, as the model gives them and those of the targets, for both models.
        vocabulary = 0 if scorer.head else (loaded.vocabulary_size or 0) * (4 if compare else 1)
        tokens = int(requests.lengths[requests.order[0]])
        budget = token_budget(loaded.device, vocabulary, self._activation_bytes(batch, tokens))
        if longest.source is not None:
            policy, differs = self._policy_of_pairs(requests)
        elif requests.may_pad:
            policy, differs = self._policy_of_windows(requests, budget)
        else:
            policy, differs = self._policy_of_copies(requests, budget)
        remark = ""
        if differs:
            remark = (
                f"model {loaded.name!r}: the numbers of a row depend on the other rows of its batch, so each row is "
                f"read with {policy.value} (slower)"
            )
        batching = Batching(
            budget,
            policy,
            remark,
            is_double=(scorer.head or loaded).dtype == torch.float64,
            dispatch_async=loaded.device.type == "cuda" and not compare,
            dedup_reads=longest.source is None and not compare,
        )
        return batching if compare or policy is not BatchPolicy.ANY_LENGTH else self._sharing(requests, batching)

    def _split(self, batch: Batch) -> SplitHead | None:
        """Split the model's head off; a proof of an earlier session is checked once."""
        model, transform = batch.model, self.proofs.get(_HEAD)
        head = split_head(model, transform) if type(transform) is int else None
        if head is None or not (self._has_head or is_head(head, model, batch.ids[0])):
            head = prove_head(model, batch.ids[0])
        if head is not None:
            self._has_head, self.proofs = True, {**self.proofs, _HEAD: head.transform}
        return head

    def _sharing(self, requests: Requests, batching: Batching) -> Batching:
        """Have beginnings that requests share read once, if they share much and a trial gives the same numbers."""
        scorer, lengths = self._scorer, requests.lengths[requests.order]
        assert scorer is not None
        # Windows of a text score most of what they read, and share nothing.
        if scorer.head is None or not requests.has_all or 2 * requests.counts.sum() > requests.lengths.sum():
            return batching
        if not requests.may_pad or follows_length(self.loaded.model, int(lengths.max())):
            return batching
        made = [requests.make(int(index)) for index in requests.order]
        if made[0].source is not None:
            return batching
        order, saved, most = order_by_beginning([request.ids for request in made])
        if saved < LEAST_SAVED:
            return batching
        longest = int(np.flatnonzero(order == 0)[0])  # the first by length
        near = {at + step for at in (longest, most) for step in range(-_SHARING_TRIED // 2, _SHARING_TRIED // 2)}
        tried = [made[order[at]] for at in sorted(near & set(range(len(order))))]
        try:
            plain = np.concatenate(self.score(tried))
            self._beginnings = Beginnings(scorer, self.loaded.model, self.loaded.device, batching.tokens)
            shared = np.concatenate(self.score(tried))
        except (OutOfMemory, *NO_CACHE):  # its cache is another, as those of recurrent models
            self._beginnings = None
            return batching
        if torch.finfo(self.loaded.dtype).bits < 32:
            same = _agree(plain, shared, self.loaded.dtype)
        else:
            same = np.allclose(plain, shared, rtol=_SHARING_ROUNDING / 10, atol=_SHARING_ROUNDING)
        if not same or not self._beginnings.has_shared:
            self._beginnings = None
            return batching
        unshared = max(1.0, float(lengths.mean()) * (1 - saved))
        rows = min(_MOST_SHARING, max(1, int(_SHARING_PASSES * batching.tokens / unshared)))
        return replace(batching, tokens=rows * int(lengths.max()), order=requests.order[order])

    def _activation_bytes(self, batch: Batch, tokens: int) -> float | None:
        """Return the GPU memory for each token of a batch; None if unknown, or if it would be whole logits mostly."""
        device = self.loaded.device
        assert self._scorer is not None
        if device.type != "cuda" or self._scorer.head is None:
            return None
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        self._scorer.read(batch.model, batch.ids)
        return (torch.cuda.max_memory_allocated(device) - before) / tokens

    def _policy_of_windows(self, requests: Requests, budget: int) -> tuple[BatchPolicy, bool]:
        if len(requests.order) < 2 or requests.lengths.max() < 4:
            return BatchPolicy.ANY_LENGTH, False
        longest, other = (requests.make(int(index)).ids for index in requests.order[:2])
        return self._find_policy(longest, other, requests.lengths, budget)

    def _policy_of_copies(self, requests: Requests, budget: int) -> tuple[BatchPolicy, bool]:
        longest, other = (requests.make(int(requests.order[at])).ids for at in (0, -1))
        # Two copies of one piece differ by a token or two: too little for a trial.
        if len(other) == len(longest) and (other != longest).sum() <= 2:
            other = longest[::-1].copy()
        policy, differs = self._find_policy(longest, other, requests.lengths[requests.order[:1]], budget)
        # Copies of one length go together anyway.
        return (BatchPolicy.SINGLE if policy is BatchPolicy.SINGLE else BatchPolicy.ANY_LENGTH), differs

    def _policy_of_pairs(self, requests: Requests) -> tuple[BatchPolicy, bool]:
        if len(requests.order) < 2:
            return BatchPolicy.ANY_LENGTH, False
        longest, short = (requests.make(int(requests.order[at])) for at in (0, -1))
        same = self._is_invariant(short, [longest])
        return (BatchPolicy.ANY_LENGTH, False) if same else (BatchPolicy.SINGLE, same is not None)

    def _find_policy(self, longest: Ints, other: Ints, lengths: Ints, budget: int) -> tuple[BatchPolicy, bool]:
        """Find out by trial which rows of token ids may share a batch, and whether a trial found different numbers.

        A few tokens of `other` are read alone and next to the longest row: padding and frequencies chosen by length
        change their numbers. If the rows have at most two lengths, a full one and a rest, only rows of one length share
        a batch anyway, and only a few tokens of each are read.
        """
        if len(longest) < 2:
            return BatchPolicy.ANY_LENGTH, False
        # A row of one token has no NLL to compare.
        other = other if len(other) > 1 else longest
        whole = longest[: max(2, budget // 2)]
        row = other[: max(2, min(_TRIAL_TOKENS, len(whole) // 2))]
        policy, differs = BatchPolicy.SAME_LENGTH, False
        if len(np.unique(lengths)) > 2:
            differs = follows_length(self.loaded.model, len(longest))
            if not differs:
                same = self._proven(_BESIDE, len(whole)) or self._is_invariant(_next_tokens(row), [_next_tokens(whole)])
                if same:
                    self._prove(_BESIDE, len(whole))
                    return BatchPolicy.ANY_LENGTH, False
                differs = same is not None
        begins = range(0, min(len(whole) - len(row) + 1, _TRIAL_ROWS * len(row)), len(row))
        same = self._proven(_TOGETHER, len(row)) or self._is_invariant(
            _next_tokens(row), [_next_tokens(whole[at : at + len(row)]) for at in begins]
        )
        if same:
            self._prove(_TOGETHER, len(row))
        return (policy, differs) if same else (BatchPolicy.SINGLE, same is not None)

    def _proven(self, proof: str, tokens: int) -> bool:
        """Return whether a trial with a row of so many tokens, or more, proved that a row has its numbers in any batch.

        What quantized weights and activations do to a batch may depend on the text, so these are tried each time.
        """
        longest = self.proofs.get(proof)
        quantized = getattr(self.loaded.model, "hf_quantizer", None) is not None
        return type(longest) is int and tokens <= longest and not quantized

    def _prove(self, proof: str, tokens: int) -> None:
        if not self._proven(proof, tokens):
            self.proofs = {**self.proofs, proof: tokens}

    def _is_invariant(self, row: Request, others: Sequence[Request]) -> bool | None:
        """Return whether a row has the same NLLs after other rows as alone; None if memory does not suffice to tell."""
        try:
            alone, together = self.score([row])[0], self.score([*others, row])[-1]
            if _agree(alone, together, self.loaded.dtype):
                return True
            again = self.score([row])[0]
        except OutOfMemory:
            return None
        if not _agree(alone, again, self.loaded.dtype):
            raise not_deterministic(self.loaded.name)
        return False


def _next_tokens(ids: Ints) -> Request:
    return Request(ids, np.arange(len(ids) - 1), ids[1:])


def _batch(loaded: LoadedModel, requests: Sequence[Request]) -> Batch:
    model, rows = loaded.model, [torch.from_numpy(request.ids) for request in requests]
    if requests[0].source is not None:
        rows = [_shifted(loaded, row) for row in rows]
        sources = [torch.from_numpy(request.source) for request in requests]
        mask = sent(_padded([torch.ones_like(source) for source in sources]), loaded.device)
        model = _Decoder(loaded.model, sent(_padded(sources), loaded.device), mask)
    counts = torch.tensor([len(request.targets) for request in requests])
    return Batch(
        model,
        sent(_padded(rows), loaded.device),
        torch.repeat_interleave(torch.arange(len(requests)), counts),
        torch.from_numpy(np.concatenate([request.at for request in requests])),
        torch.from_numpy(np.concatenate([request.targets for request in requests])),
    )


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
    """Return the decoder's input for labels, shape ``[target tokens]``, as the model makes it in training."""
    model, start = loaded.model, getattr(loaded.model.config, "decoder_start_token_id", None)
    try:
        if hasattr(model, "prepare_decoder_input_ids_from_labels"):
            shifted: Tensor = model.prepare_decoder_input_ids_from_labels(labels=labels[None])[0]
            return shifted
        return torch.cat([torch.tensor([start]), labels[:-1]])
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        if start is not None:
            raise
        raise ModelError(
            f"model {loaded.name!r}: its decoder has no start token; set decoder_start_token_id in its config.json"
        ) from error


def _padded(rows: Sequence[Tensor]) -> Tensor:
    """Pad on the right, with a token id that is never read: shape ``[batch, tokens]``."""
    return pad_sequence(list(rows), batch_first=True)


def token_budget(device: torch.device, plain_vocabulary: int = 0, activation_bytes: float | None = None) -> int:
    """Return how many tokens to read in a batch.

    It does not depend on the free memory, so that each run has the same batches: rounding in half precision depends on
    them. `plain_vocabulary` is the number of logits per token if they are held whole, 0 if they are streamed;
    `activation_bytes` the model's memory for each token.
    """
    budget = _CPU_TOKENS if device.type == "cpu" else _ACCELERATOR_TOKENS
    if activation_bytes:
        # A power of two, so that a little difference in the allocator changes no batch.
        budget = 2 ** int(math.log2(max(1.0, min(_MOST_TOKENS, _ACTIVATION_BYTES / activation_bytes))))
    if plain_vocabulary:
        budget = min(budget, max(1, _PLAIN_LOGIT_BYTES // (4 * plain_vocabulary)))
    return budget


def _agree(one: Floats, other: Floats, dtype: torch.dtype) -> bool:
    """Return whether NLLs differ by rounding only; NaN agrees with NaN, since it is an error elsewhere."""
    tolerance = max(torch.finfo(dtype).eps, _FLOAT32_ROUNDING) if dtype.is_floating_point else 0.0
    one, other = np.nan_to_num(one), np.nan_to_num(other)
    return bool(np.abs(one - other).mean() <= tolerance * np.abs(one).mean())
