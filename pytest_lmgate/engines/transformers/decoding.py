"""Generation with the settings of one gate and nothing of the checkpoint's but its token ids.

``generate`` takes defaults (penalties, minimal lengths, beams, sampling) from the checkpoint's generation_config, so we
replace that while it runs. Sampling and stop strings are our own: a row's sample depends on the seed and the row alone,
and a text stops where the text itself has a stop string.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from torch import BoolTensor, FloatTensor, LongTensor, Tensor, nn

from pytest_lmgate.engines.base import Batching, BatchPolicy, Drawn
from pytest_lmgate.engines.devices import wide
from pytest_lmgate.engines.tokenizers import decoded
from pytest_lmgate.engines.transformers.beginnings import LEAST_SAVED, NO_CACHE, Past, cache_of, common, past_of
from pytest_lmgate.engines.transformers.head import capture_hidden, follows_length, forget_lengths, inputs_of
from pytest_lmgate.engines.transformers.loading import LoadedModel
from pytest_lmgate.engines.writing import ended_text, has_stop, uniforms
from pytest_lmgate.errors import NonFiniteError
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.windows.tokens import PromptIds

# Tokens that begin, end, are forced or forbidden: the checkpoint's own.
_TOKEN_IDS = (
    "bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id",
    "bad_words_ids", "suppress_tokens", "begin_suppress_tokens",
)  # fmt: skip
# Tokens of prompts and texts, padding and all beams included, whose keys and values are in memory at a time.
_CPU_TOKENS, _ACCELERATOR_TOKENS = 8192, 65536
_PROOF_TOKENS, _PROOF_PADDING = 24, 4


def decoding_ids(loaded: LoadedModel) -> dict[str, Any]:
    """Return the token ids of a checkpoint's generation_config; EOS may be the tokenizer's."""
    defaults = getattr(loaded.model, "generation_config", None)
    ids = {name: getattr(defaults, name, None) for name in _TOKEN_IDS}
    if ids["eos_token_id"] is None:
        ids["eos_token_id"] = getattr(loaded.tokenizer, "eos_token_id", None)
    return ids


class Decoding:
    def __init__(self, loaded: LoadedModel, settings: GenerationSettings) -> None:
        self._loaded, self._settings = loaded, settings
        ids = decoding_ids(loaded)
        eos, tokenizer_eos = ids["eos_token_id"], getattr(loaded.tokenizer, "eos_token_id", None)
        self._drawn_until = frozenset(eos if isinstance(eos, list | tuple) else [] if eos is None else [eos])
        # A fine-tune's generation_config may name the end token of its base only.
        self._eos = self._drawn_until.union([] if tokenizer_eos is None else [tokenizer_eos])
        pad = getattr(loaded.tokenizer, "pad_token_id", None)
        # Never read: padding is masked, and a text is cut at its end. A token that was added to the tokenizer alone has
        # no embedding.
        size = loaded.vocabulary_size
        self._pad = next((id_ for id_ in (pad, *sorted(self._eos)) if id_ is not None and id_ < (size or id_ + 1)), 0)
        self._config = transformers.GenerationConfig(
            **{**ids, "eos_token_id": sorted(self._eos) or None},
            pad_token_id=self._pad,
            max_new_tokens=settings.max_new_tokens,
            num_beams=settings.num_beams,
            do_sample=False,
        )
        self._beginning: tuple[int, ...] = ()  # of all prompts, where it is read once
        self._past: Past = []

    def texts(self, prompts: Sequence[Sequence[int]], rows: Sequence[int]) -> list[tuple[str, int, bool]]:
        """Write one text per prompt, token ids, in one batch; a sample depends on the number of its row."""
        written, _ = self._write(prompts, rows, self._config)
        decode, stop = partial(decoded, self._loaded.tokenizer), self._settings.stop
        # An end that is forced at the limit cuts a text.
        own = self._settings.max_new_tokens - (self._config.forced_eos_token_id is not None)
        return [ended_text(ids[:own], stop, decode=decode, ends=self._eos.__contains__) for ids in written]

    def drawn(self, prompts: Sequence[Sequence[int]], rows: Sequence[int]) -> list[Drawn]:
        """Draw tokens from the model's own distribution; no setting of the checkpoint forces or forbids a token."""
        config = transformers.GenerationConfig(
            eos_token_id=sorted(self._drawn_until) or None,
            pad_token_id=self._pad,
            max_new_tokens=self._settings.max_new_tokens,
            do_sample=False,
        )
        written, nll = self._write(prompts, rows, config)
        until = self._drawn_until
        ends = [next((at for at, token in enumerate(ids, 1) if token in until), len(ids)) for ids in written]
        return [(ids[:end], row_nll[:end]) for ids, row_nll, end in zip(written, nll.tolist(), ends, strict=True)]

    def _write(
        self, prompts: Sequence[Sequence[int]], rows: Sequence[int], config: transformers.GenerationConfig
    ) -> tuple[list[list[int]], Tensor]:
        """Return the tokens behind each prompt, and when sampling their NLLs, shape ``[rows, tokens]``."""
        begin = 1 if self._loaded.is_encoder_decoder else max(map(len, prompts))
        watch, draw = _Watch(), None
        processors: list[Any] = [watch]
        if self._settings.is_sampling:
            drawn = torch.from_numpy(np.stack([uniforms(self._settings, row) for row in rows]))
            draw = _Draw(drawn.to(self._loaded.device, wide(self._loaded.device)), begin)
            processors += [*_warpers(self._settings), draw]
        stops = [_StopStrings(self._loaded.tokenizer, self._settings.stop, begin)] if self._settings.stop else []
        out = self._generate(
            prompts,
            config,
            logits_processor=transformers.LogitsProcessorList(processors),
            stopping_criteria=transformers.StoppingCriteriaList(stops),
        )
        if watch.found:
            raise NonFiniteError(
                f"model {self._loaded.name!r}: NaN or infinite logits while generating; the weights are damaged, or "
                "the dtype overflows (try dtype: float32)"
            )
        return out[:, begin:].tolist(), torch.cat(draw.nll, 1).cpu() if draw is not None else torch.empty(0)

    def shares_batch(self, prompt: Sequence[int], other: Sequence[int]) -> bool:
        """Return whether a prompt gets the same text next to another one as alone.

        Some models ignore the attention mask, count positions from the padding on, or mix a batch's states.
        """
        return self._same_texts(self._tried([prompt]), self._tried([prompt, other]))

    def _tried(self, prompts: Sequence[Sequence[int]]) -> Any:
        """Write two tokens for each prompt, and keep their logits."""
        config = transformers.GenerationConfig(
            **decoding_ids(self._loaded), pad_token_id=self._pad, max_new_tokens=2, do_sample=False,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
        return self._generate(prompts, config)

    def _same_texts(self, one: Any, other: Any) -> bool:
        """Return whether the first prompt got the same text and logits in two trials."""
        if one.sequences[0, -2] != other.sequences[0, -2]:
            return False
        return all(_agree(a[0], b[0], self._loaded.dtype) for a, b in zip(one.logits, other.logits, strict=True))

    def batching(self, prompts: Sequence[PromptIds], context: int | None) -> Batching:
        """Find out by trial which prompts, the longest first, may share a batch."""
        budget = _CPU_TOKENS if self._loaded.device.type == "cpu" else _ACCELERATOR_TOKENS
        room = _PROOF_TOKENS if context is None else min(_PROOF_TOKENS, context - _PROOF_PADDING - 2)
        prompt = prompts[-1].ids[: max(0, room)] if prompts else ()
        if len(prompts) < 2 or not prompt:
            return Batching(budget, BatchPolicy.SINGLE)
        other = tuple(reversed(prompt))
        longer = (*other, *prompt * _PROOF_PADDING)[: len(prompt) + _PROOF_PADDING]
        most = len(prompts[0].ids) + self._settings.max_new_tokens
        if not follows_length(self._loaded.model, most) and self.shares_batch(prompt, longer):
            self._share([prompt.ids for prompt in prompts])
            return Batching(budget, BatchPolicy.ANY_LENGTH)
        return Batching(budget, BatchPolicy.SAME_LENGTH if self.shares_batch(prompt, other) else BatchPolicy.SINGLE)

    def _share(self, prompts: Sequence[tuple[int, ...]]) -> None:
        """Read the beginning that all prompts share once, if it is long and a trial gives the same texts."""
        model, device = self._loaded.model, self._loaded.device
        ids = list(map(np.array, prompts))
        shared = min(*(common(ids[0], row) for row in ids[1:]), min(map(len, ids)) - 1)
        if self._loaded.is_encoder_decoder or self._settings.num_beams > 1:
            return
        if shared * len(ids) < LEAST_SAVED * sum(map(len, ids)):
            return
        # The shortest first, which is padded, by no more than what is shared.
        longer = next(prompt for prompt in prompts if len(prompt) - len(prompts[-1]) <= shared)
        tried, cache = [prompts[-1], longer], cache_of([], 1)
        plain = self._tried(tried)
        try:
            with capture_hidden(model.get_output_embeddings()):
                model(**inputs_of(model, torch.tensor([prompts[0][:shared]], device=device), cache))
            self._beginning, self._past = prompts[0][:shared], past_of(cache, shared)
            same = self._same_texts(plain, self._tried(tried))
        except NO_CACHE:
            same = False
        if not same:
            self._beginning, self._past = (), []

    def _generate(self, prompts: Sequence[Sequence[int]], config: Any, **options: Any) -> Any:
        width, begun = max(map(len, prompts)), len(self._beginning)
        ids = torch.full((len(prompts), width), self._pad, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, tokens in enumerate(prompts):
            # A causal model goes on at the right end; an encoder reads from the left.
            last = width - len(tokens)
            at = slice(0, len(tokens)) if self._loaded.is_encoder_decoder else slice(last, width)
            ids[row, at], mask[row, at] = torch.tensor(tokens), 1
        pads = [width - len(tokens) for tokens in prompts]
        if begun and max(pads) <= begun and all(tuple(tokens[:begun]) == self._beginning for tokens in prompts):
            # Keys and values lie where the padded rows have them: windows of attention count places, not tokens.
            past = [(_shifted(keys, pads), _shifted(values, pads)) for keys, values in self._past]
            options["past_key_values"] = cache_of(past, len(prompts))
        model, device = self._loaded.model, self._loaded.device
        if "attention_mask" in inspect.signature(model.forward).parameters:  # else generate() would refuse it
            options["attention_mask"] = mask.to(device)
        ids = ids.to(device)
        if not self._loaded.is_encoder_decoder:
            forget_lengths(model, ids, width + config.max_new_tokens)
        with _only(model, config):
            return model.generate(input_ids=ids, generation_config=config, **options)


def _shifted(numbers: Tensor, pads: Sequence[int]) -> Tensor:
    """Return the keys or values of a beginning for rows that start with so much padding; they stop at one place."""
    size = numbers.shape[-2]
    return torch.cat([nn.functional.pad(numbers[..., : size - pad, :], (0, 0, pad, 0)) for pad in pads])


@contextlib.contextmanager
def _only(model: Any, config: transformers.GenerationConfig) -> Iterator[None]:
    """Replace the checkpoint's own generation_config, and that of a model inside an adapter."""
    before = {module: vars(module)["generation_config"] for module in _with_config(model)}
    for module in {model, *before}:
        module.generation_config = config
    try:
        yield
    finally:
        for module in {model, *_with_config(model)}:
            if module in before:
                module.generation_config = before[module]
            else:
                del module.generation_config


def _with_config(model: Any) -> list[Any]:
    return [module for module in model.modules() if "generation_config" in vars(module)]


def _warpers(settings: GenerationSettings) -> Iterator[Any]:
    """Yield the requested warpers of a distribution, in the order of ``generate``."""
    if settings.temperature is not None:
        yield transformers.TemperatureLogitsWarper(float(settings.temperature))
    if settings.top_k is not None:
        yield transformers.TopKLogitsWarper(settings.top_k)
    if settings.top_p is not None:
        yield transformers.TopPLogitsWarper(float(settings.top_p))


def _agree(ours: Tensor, theirs: Tensor, dtype: torch.dtype) -> bool:
    """Return whether two rows of logits differ by the rounding of `dtype` only, relative to their spread."""
    # Some models forbid tokens with an infinite or a huge negative logit, which says nothing here.
    ours, theirs = (logits.float().nan_to_num().clamp(-1e4, 1e4) for logits in (ours, theirs))
    return bool((ours - theirs).std() <= max(1e-3, 8 * torch.finfo(dtype).eps) * theirs.std())


class _Watch(transformers.LogitsProcessor):
    """Remembers whether any logits were NaN or infinite, by the largest of each row."""

    def __init__(self) -> None:
        self._bad: Tensor | None = None

    @property
    def found(self) -> bool:
        return self._bad is not None and bool(self._bad)

    def __call__(self, input_ids: LongTensor, scores: FloatTensor) -> FloatTensor:
        bad = ~scores.amax(-1).isfinite().all()
        self._bad = bad if self._bad is None else self._bad | bad
        return scores


class _Draw(transformers.LogitsProcessor):
    """Draws each row's next token by the row's own numbers in [0, 1), shape ``[rows, steps]``.

    The token drawn is the first whose cumulative probability exceeds the number (inverse transform sampling), so that
    a row's sample does not depend on the rest of the batch. Sequences have the length `begin` at the first step.
    The NLLs of the tokens are in `nll`, shape ``[rows, 1]`` for each step.
    """

    def __init__(self, uniforms: Tensor, begin: int) -> None:
        self._uniforms, self._begin = uniforms, begin
        self.nll: list[Tensor] = []

    def __call__(self, input_ids: LongTensor, scores: FloatTensor) -> FloatTensor:
        probabilities = scores.to(self._uniforms.dtype).softmax(-1)
        cumulative = probabilities.cumsum(-1)
        step = input_ids.shape[1] - self._begin
        wanted = self._uniforms[:, step, None] * cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, wanted, right=True).clamp_(max=scores.shape[-1] - 1)
        self.nll.append(-probabilities.gather(-1, drawn).log())
        only: Any = torch.full_like(scores, -torch.inf).scatter_(1, drawn, 0.0)
        return only  # type: ignore[no-any-return]


class _StopStrings(transformers.StoppingCriteria):
    """Ends a row once its text has a stop string."""

    def __init__(self, tokenizer: Any, stops: Sequence[str], begin: int) -> None:
        self._decode, self._stops, self._begin = partial(decoded, tokenizer, skip_special=False), stops, begin

    def __call__(self, input_ids: LongTensor, scores: FloatTensor, **_: Any) -> BoolTensor:
        rows = input_ids[:, self._begin :].tolist()
        ended: Any = torch.tensor([has_stop(row, self._decode, self._stops) for row in rows], device=input_ids.device)
        return ended  # type: ignore[no-any-return]
