"""How a model is made to write: the settings of one gate and nothing of the checkpoint's but its token ids.

``generate`` fills whatever it is not told from the checkpoint's generation_config (penalties, minimal lengths, beams,
sampling), so that this is put away while it runs. Sampling and stop strings are done here: a row's sample depends on
the seed and the row alone, and a text stops where the text itself has a stop string.
"""

from __future__ import annotations

__all__ = ["Decoding", "decoding_ids"]

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from torch import BoolTensor, FloatTensor, LongTensor, Tensor

from pytest_lmgate.backends.base import Batching, Company
from pytest_lmgate.backends.hf.likelihood.rotary import follows_length, forget_lengths
from pytest_lmgate.backends.hf.models.loading import LoadedModel
from pytest_lmgate.backends.writing import has_stop, uniforms
from pytest_lmgate.config.arguments.generation import GenerationSettings
from pytest_lmgate.data.tokenization.prompting import PromptIds
from pytest_lmgate.errors import NonFiniteError

# Which tokens begin and end a text, and which ones a model must not or must write where: the checkpoint's own.
_TOKEN_IDS = (
    "bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id",
    "bad_words_ids", "suppress_tokens", "begin_suppress_tokens",
)  # fmt: skip
# Tokens of prompts and texts, padding and all beams included, whose keys and values are in memory at a time.
_CPU_TOKENS, _ACCELERATOR_TOKENS = 8192, 65536
_PROOF_TOKENS, _PROOF_PADDING = 24, 4


def decoding_ids(loaded: LoadedModel) -> dict[str, Any]:
    """Return the token ids of a checkpoint's generation_config that decoding goes by; EOS else the tokenizer's."""
    own = getattr(loaded.model, "generation_config", None)
    ids = {name: getattr(own, name, None) for name in _TOKEN_IDS}
    if ids["eos_token_id"] is None:
        ids["eos_token_id"] = getattr(loaded.tokenizer, "eos_token_id", None)
    return ids


class Decoding:
    """One model in evaluation mode, and one way to decode."""

    def __init__(self, loaded: LoadedModel, settings: GenerationSettings) -> None:
        self._loaded, self._settings = loaded, settings
        ids = decoding_ids(loaded)
        eos = ids["eos_token_id"]
        self._eos = frozenset(eos if isinstance(eos, list | tuple) else [] if eos is None else [eos])
        pad = getattr(loaded.tokenizer, "pad_token_id", None)
        # Never read: padding is masked, and a text is cut at its end.
        self._pad = pad if pad is not None else min(self._eos, default=0)
        self._config = transformers.GenerationConfig(
            **ids,
            pad_token_id=self._pad,
            max_new_tokens=settings.max_new_tokens,
            num_beams=settings.num_beams,
            do_sample=False,
        )

    def texts(self, prompts: Sequence[Sequence[int]], rows: Sequence[int]) -> list[tuple[str, int]]:
        """Write one text per prompt, in one batch; see `Runner.generate`.

        Args:
            prompts: Token ids.
            rows: The number of each prompt, which a sample depends on.

        Raises:
            NonFiniteError: The model's logits are NaN or infinite.
        """
        begin = 1 if self._loaded.is_encoder_decoder else max(map(len, prompts))
        watch = _Watch()
        processors: list[Any] = [watch]
        if self._settings.is_sampling:
            processors += [*_warpers(self._settings), _Draw(self._uniforms(rows), begin)]
        stops = [_StopStrings(self, self._settings.stop, begin)] if self._settings.stop else []
        out = self._generate(
            prompts,
            self._config,
            logits_processor=transformers.LogitsProcessorList(processors),
            stopping_criteria=transformers.StoppingCriteriaList(stops),
        )
        if watch.found:
            raise NonFiniteError(
                f"model {self._loaded.name!r}: NaN or infinite logits while generating; the weights are damaged, or "
                "the dtype overflows (try dtype: float32)"
            )
        return [(self.decode(tokens), self._length(tokens)) for tokens in out[:, begin:].tolist()]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of generated tokens up to the first end token, without special tokens."""
        end = next((at for at, token in enumerate(tokens) if token in self._eos), len(tokens))
        text: str = self._loaded.tokenizer.decode(list(tokens[:end]), skip_special_tokens=True)
        return text

    def shares_batch(self, prompt: Sequence[int], other: Sequence[int]) -> bool:
        """Try out whether the model writes the same to a prompt beside another one as alone.

        Some models do not look at the attention mask, count positions from the padding on, or mix a batch's states.
        """
        config = transformers.GenerationConfig(
            **decoding_ids(self._loaded), pad_token_id=self._pad, max_new_tokens=2, do_sample=False,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
        alone, beside = self._generate([prompt], config), self._generate([prompt, other], config)
        if alone.sequences[0, -2] != beside.sequences[0, -2]:
            return False
        dtype = self._loaded.dtype
        return all(_agree(a[0], b[0], dtype) for a, b in zip(alone.logits, beside.logits, strict=True))

    def batching(self, prompts: Sequence[PromptIds], context: int | None) -> Batching:
        """Try out which prompts, the longest first, may share a batch: all, those of one length, none."""
        budget = _CPU_TOKENS if self._loaded.device.type == "cpu" else _ACCELERATOR_TOKENS
        room = _PROOF_TOKENS if context is None else min(_PROOF_TOKENS, context - _PROOF_PADDING - 2)
        prompt = prompts[-1].ids[: max(0, room)] if prompts else ()
        if len(prompts) < 2 or not prompt:
            return Batching(budget, Company.ALONE)
        other = tuple(reversed(prompt))
        longer = (*other, *prompt * _PROOF_PADDING)[: len(prompt) + _PROOF_PADDING]
        most = len(prompts[0].ids) + self._settings.max_new_tokens
        if not follows_length(self._loaded.model, most) and self.shares_batch(prompt, longer):
            return Batching(budget, Company.ANY)
        return Batching(budget, Company.EQUAL if self.shares_batch(prompt, other) else Company.ALONE)

    def _generate(self, prompts: Sequence[Sequence[int]], config: Any, **how: Any) -> Any:
        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), self._pad, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, tokens in enumerate(prompts):
            # A causal model goes on at the right end; an encoder reads from the left.
            at = slice(0, len(tokens)) if self._loaded.is_encoder_decoder else slice(width - len(tokens), width)
            ids[row, at], mask[row, at] = torch.tensor(tokens), 1
        model, device = self._loaded.model, self._loaded.device
        if "attention_mask" in inspect.signature(model.forward).parameters:  # else generate() would refuse it
            how["attention_mask"] = mask.to(device)
        ids = ids.to(device)
        if not self._loaded.is_encoder_decoder:
            forget_lengths(model, ids, width + config.max_new_tokens)
        with _only(model, config):
            return model.generate(input_ids=ids, generation_config=config, **how)

    def _uniforms(self, rows: Sequence[int]) -> Tensor:
        drawn = [uniforms(self._settings, row) for row in rows]
        device = self._loaded.device
        dtype = torch.float32 if device.type == "mps" else torch.float64  # which has no float64
        return torch.from_numpy(np.stack(drawn)).to(device, dtype)

    def _length(self, tokens: Sequence[int]) -> int:
        return next((at + 1 for at, token in enumerate(tokens) if token in self._eos), len(tokens))


@contextlib.contextmanager
def _only(model: Any, config: transformers.GenerationConfig) -> Iterator[None]:
    """Put the checkpoint's own generation_config away, that of a model inside an adapter too."""
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
    """Yield what shapes a distribution, in the order of ``generate``; nothing that was not asked for."""
    if settings.temperature is not None:
        yield transformers.TemperatureLogitsWarper(float(settings.temperature))
    if settings.top_k is not None:
        yield transformers.TopKLogitsWarper(settings.top_k)
    if settings.top_p is not None:
        yield transformers.TopPLogitsWarper(float(settings.top_p))


def _agree(ours: Tensor, theirs: Tensor, dtype: torch.dtype) -> bool:
    """Whether two rows of logits differ by the rounding of `dtype` only, as seen beside their spread."""
    # Some models forbid tokens with an infinite or a huge negative logit, which says nothing here.
    ours, theirs = (logits.float().nan_to_num().clamp(-1e4, 1e4) for logits in (ours, theirs))
    return bool((ours - theirs).std() <= max(1e-3, 8 * torch.finfo(dtype).eps) * theirs.std())


class _Watch(transformers.LogitsProcessor):
    """Remembers whether any logits were NaN or infinite: the largest of a row tells."""

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
    """Draws each row's next token by the row's own uniform numbers, and leaves no other token to choose from.

    The token drawn is the first whose cumulative probability exceeds the number (inverse transform sampling), so that
    a row's sample does not depend on what else is in the batch.
    """

    def __init__(self, uniforms: Tensor, begin: int) -> None:
        """Take numbers in [0, 1), shape ``[rows, steps]``, and the length of the sequences at the first step."""
        self._uniforms, self._begin = uniforms, begin

    def __call__(self, input_ids: LongTensor, scores: FloatTensor) -> FloatTensor:
        cumulative = scores.to(self._uniforms.dtype).softmax(-1).cumsum(-1)
        step = input_ids.shape[1] - self._begin
        wanted = self._uniforms[:, step, None] * cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, wanted, right=True).clamp_(max=scores.shape[-1] - 1)
        only: Any = torch.full_like(scores, -torch.inf).scatter_(1, drawn, 0.0)
        return only  # type: ignore[no-any-return]


class _StopStrings(transformers.StoppingCriteria):
    """Ends a row once its text has a stop string."""

    def __init__(self, decoding: Decoding, stops: Sequence[str], begin: int) -> None:
        self._decoding, self._stops, self._begin = decoding, stops, begin

    def __call__(self, input_ids: LongTensor, scores: FloatTensor, **_: Any) -> BoolTensor:
        rows = input_ids[:, self._begin :]
        ended: Any = torch.tensor([has_stop(row, self._text, self._stops) for row in rows], device=input_ids.device)
        return ended  # type: ignore[no-any-return]

    def _text(self, row: Tensor) -> str:
        return self._decoding.decode(row.tolist())
