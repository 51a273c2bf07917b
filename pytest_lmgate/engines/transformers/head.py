"""From hidden states to log-likelihoods: one forward pass, the language-model head split off, and the logits in tiles.

Batches are right-padded, without an attention mask: right for models whose states do not depend on later tokens, which
a trial proves. The model's own forward runs with its head's input cut to nothing, so that everything before the head
(scaling, projections, norms) is the model's own. The transform after the head (soft-capping, scaling) is one of the
few forms in use, proven against ``model(...).logits``. A head that cannot be proven is not used; the model's own logits
are then.

The logits are never held whole: a tile of some rows and tokens is made, exponentiated and summed while it is in the
processor's cache. Each row is shifted by about its target's logit, so that one pass is enough:
``NLL = log sum_v exp(x_v - shift) + shift - x_target``. If that logit is moderate, no shift is needed, which saves a
pass. If the sum overflows (an NLL or a logit above 88) or underflows, the row is done again with a running maximum
(Milakov and Gimelshein 2018, arXiv 1805.02867).
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pytest_lmgate.engines.base import check_ids
from pytest_lmgate.engines.devices import sent, wide
from pytest_lmgate.engines.logits import (
    Logits,
    LogitTransform,
    TileShape,
    VocabularyHead,
    tile_shape,
    vocabulary_tiles,
)
from pytest_lmgate.errors import EngineError, ModelError

# One forward pass. A model that draws random numbers is run twice: the same tokens must give the same numbers.
#
# The rotary frequencies ``longrope`` and ``dynamic`` of transformers follow the length: beyond the trained length, the
# longest row of a batch chooses those of all rows. ``dynamic`` also keeps those of the longest row so far, until it
# reads a row within the trained length.


_ROUNDINGS = 8
_FLOAT32_ROUNDING = 1e-5


def inputs_of(model: Any, ids: Tensor, cache: Any = None) -> dict[str, Any]:
    """Return the arguments to read token ids, shape ``[batch, tokens]``, that follow what a cache holds."""
    if cache is not None:
        return {"input_ids": ids, "past_key_values": cache, "use_cache": True}
    parameters = inspect.signature(model.forward).parameters
    takes_use_cache = "use_cache" in parameters or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )
    return {"input_ids": ids, **({"use_cache": False} if takes_use_cache else {})}


def logits_of(model: Any, ids: Tensor) -> Tensor:
    """Return the logits after each token, shape ``[batch, tokens, vocabulary]``."""
    output = model(**inputs_of(model, ids))
    first = output[0] if isinstance(output, tuple) else output
    logits = first if isinstance(first, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        raise EngineError(f"expected logits of {type(model).__name__}, got {type(output).__name__} without them")
    if logits.ndim != 3 or logits.shape[0] != ids.shape[0] or logits.shape[1] < ids.shape[1]:
        raise EngineError(
            f"expected logits of shape [{ids.shape[0]}, {ids.shape[1]}, vocabulary] of {type(model).__name__}, got "
            f"{list(logits.shape)}"
        )
    # A prompt-tuning adapter reads its virtual tokens before the text and gives logits for them too.
    return logits[:, -ids.shape[1] :]


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch off dropout and the like, and on again afterwards: a model in memory may be in training."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def not_deterministic(name: str) -> ModelError:
    return ModelError(
        f"model {name!r} is not deterministic: it gave two different likelihoods for the same row, but a gate needs "
        "the same number twice; switch off its randomness, such as dropout that ignores evaluation mode, or "
        "Reformer's attention by random hashes (hash_seed in config.json)"
    )


def random_states() -> list[Tensor]:
    """Return the states of torch's random numbers; a model that draws some changes them."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states += [torch.cuda.get_rng_state(device) for device in range(torch.cuda.device_count())]
    return states


def differ_by_rounding(result: Tensor, again: Tensor) -> bool:
    """Return whether two results of a model differ by rounding only; NaN is an error elsewhere."""
    tolerance = max(_ROUNDINGS * torch.finfo(result.dtype).eps, _FLOAT32_ROUNDING)
    result, again = result.cpu().double().nan_to_num(), again.cpu().double().nan_to_num()
    return bool((result - again).abs().mean() <= tolerance * result.abs().mean())


def follows_length(model: Any, tokens: int) -> bool:
    """Return whether the longest row of a batch, of so many tokens, chooses the frequencies of the other rows."""
    return _has(model, ("dynamic", "longrope"), tokens)


def forget_lengths(model: Any, ids: Tensor, tokens: int | None = None) -> None:
    """Reset frequencies that a model keeps from earlier, longer rows.

    `ids` are the next batch, shape ``[batch, tokens]``; `tokens` is the length of a row with the text that it writes.
    """
    # A row of exactly the trained length does not reset them.
    if _has(model, ("dynamic",), (tokens or ids.shape[1]) + 1):
        model(input_ids=ids[:, :2])


def _has(model: Any, kinds: tuple[str, ...], tokens: int) -> bool:
    return any(
        rope.get("rope_type", rope.get("type")) in kinds and tokens > _trained(config, rope)
        for config in _configs(getattr(model, "config", None))
        for rope in _ropes(config)
    )


def _configs(config: Any) -> Iterator[Any]:
    """Yield a config and its parts, such as the text config of a multimodal model."""
    yield config
    for value in getattr(config, "__dict__", {}).values():
        if hasattr(value, "model_type"):
            yield from _configs(value)


def _ropes(config: Any) -> Iterator[dict[Any, Any]]:
    """Yield a config's settings of its frequencies; some have one for each type of layer."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if isinstance(rope, dict):
        yield rope
        yield from (value for value in rope.values() if isinstance(value, dict))


def _trained(config: Any, declared: dict[Any, Any]) -> float:
    """Return the length that the model was trained to read; 0 if unknown."""
    original = "original_max_position_embeddings"
    lengths = declared.get(original), *(getattr(config, name, None) for name in (original, "max_position_embeddings"))
    return min((length for length in lengths if isinstance(length, int | float)), default=0)


# The head, and the logits in tiles.


# Config entries with such names may act on the logits.
_CONFIG_WORDS = ("logit", "softcap", "soft_cap", "cap", "head_multiplier", "output_multiplier", "scal")
_PROOF_TOKENS = 24
_PROOF_ROWS = 8
# Targets' logits up to this size need no shift: exp(-50) = 2e-22 is part of the sum, so that what float32 loses in
# terms below its smallest normal number, 1e-38, is less than a rounding of the sum.
_UNSHIFTED = 50.0
# Logits upcast at a time if they are held whole: 128 MiB of float64.
_LOGITS = 2**24
# Logits of a position that `Scorer.some_logits` returns: a changed hidden state changes them all.
_SOME = 4096


@contextlib.contextmanager
def capture_hidden(module: nn.Module, *, skip: bool = True) -> Iterator[list[Tensor]]:
    """Collect the input of the head `module`, ``[batch, tokens, hidden]``, and skip its work unless told otherwise."""
    captured: list[Tensor] = []

    def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        hidden, *rest = args
        captured.append(hidden)
        return (hidden[:, :0] if skip else hidden, *rest), kwargs

    handle = module.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        yield captured
    finally:
        handle.remove()


class SplitHead(NamedTuple):
    """A head that is split off."""

    head: VocabularyHead
    module: nn.Module  # whose input the head takes
    transform: int  # which of the transforms that the config may mean is the head's


def split_head(model: Any, transform: int) -> SplitHead | None:
    """Split off a head whose transform was proved before; None if the model has no such head."""
    module, transforms = _plain_head(model), list(_candidates(getattr(model, "config", None)))
    if module is None or not 0 <= transform < len(transforms):
        return None
    return SplitHead(_head_of(module, transforms[transform]), module, transform)


def is_head(split: SplitHead, model: Any, ids: Tensor) -> bool:
    """Return whether a head gives a model's own logits of a few tokens: one pass, where a proof takes three."""
    ids = ids[None, :_PROOF_TOKENS]
    try:
        with capture_hidden(split.module, skip=False) as captured:
            logits = logits_of(model, ids)
    except (EngineError, RuntimeError, TypeError, ValueError, LookupError):
        return False
    return _gives(split.head, captured, logits, ids)


def prove_head(model: Any, ids: Tensor) -> SplitHead | None:
    """Split off the head of a model in evaluation mode, if a few token ids, shape ``[tokens]``, prove it right.

    Return None if the model's own logits must be used.
    """
    module = _plain_head(model)
    if module is None:
        return None
    ids = ids[None, :_PROOF_TOKENS]
    try:
        with capture_hidden(module) as captured:
            model(**inputs_of(model, ids))
        logits = logits_of(model, ids)
        probe, image = _probe(model, module, ids)
    except (EngineError, RuntimeError, TypeError, ValueError, LookupError):
        return None
    if image.shape != probe.shape:
        return None
    for number, transform in enumerate(_candidates(getattr(model, "config", None))):
        head = _head_of(module, transform)
        if not _agree(probe.clone() if transform is None else transform(probe.clone()), image, image.dtype):
            continue
        if _gives(head, captured, logits, ids):
            return SplitHead(head, module, number)
    return None


def _gives(head: VocabularyHead, captured: list[Tensor], logits: Tensor, ids: Tensor) -> bool:
    """Return whether a head turns its captured input into the model's own logits, ``[1, tokens, vocabulary]``."""
    size, width = head.weight.shape
    if len(captured) != 1 or captured[0].shape != (*ids.shape, width) or logits.shape[-1] != size:
        return False
    hidden, expected = captured[0][0, -_PROOF_ROWS:].to(head.weight), logits[0, -_PROOF_ROWS:]
    buffer = torch.empty(expected.numel(), dtype=head.dtype, device=head.weight.device)
    return _agree(head.tile(hidden, 0, size, buffer), expected, head.dtype)


def _head_of(module: nn.Linear, transform: LogitTransform | None) -> VocabularyHead:
    bias = None if module.bias is None else module.bias.detach()
    return VocabularyHead(module.weight.detach(), bias, transform)


def _plain_head(model: Any) -> nn.Linear | None:
    try:
        module = model.get_output_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    return module if _is_plain_linear(module) else None


def _is_plain_linear(module: object) -> bool:
    """Return whether a head computes ``hidden @ weight.T + bias`` and nothing else.

    A subclass (quantized, with an adapter), or a weight of its own type (torchao, DTensor), may compute anything.
    """
    return (
        type(module) is nn.Linear
        and type(module.weight) is nn.Parameter
        and module.weight.dtype.is_floating_point
        and not module.weight.is_meta
    )


def _probe(model: Any, module: nn.Module, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Let the model transform known numbers instead of its head's output.

    Their range is large, since a soft-cap may not show in the logits of a few tokens. They are float32 or better, so
    that a factor near 1 is not mistaken for rounding in half precision.
    """
    given: list[Tensor] = []

    def replace(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        dtype = torch.promote_types(output.dtype, torch.float32)
        ramp = torch.linspace(-50, 50, output.shape[-1], device=output.device, dtype=dtype)
        given.append(ramp)
        return ramp.expand(output.shape).clone()

    handle = module.register_forward_hook(replace)
    try:
        image = logits_of(model, ids)[0, -1]
    finally:
        handle.remove()
    return given[-1], image


def _agree(ours: Tensor, theirs: Tensor, dtype: torch.dtype) -> bool:
    """Return whether two results differ by the rounding of `dtype` only; false for NaN."""
    tolerance = max(4 * torch.finfo(dtype).eps, 1e-5)
    ours, theirs = ours.cpu().double(), theirs.cpu().double()
    error = (ours - theirs).abs().max()
    return bool(error <= tolerance * max(1e-3, theirs.abs().max().item()))


def _candidates(config: Any) -> Iterator[LogitTransform | None]:
    """Yield the transforms that the config may mean, first none."""
    yield None
    numbers = _declared(config.to_dict() if hasattr(config, "to_dict") else {})
    caps = [_soft_cap(number) for number in numbers]
    scales = [_scale(factor) for number in numbers for factor in (number, 1 / number)]
    yield from (*caps, *scales)
    for at, cap in itertools.product(range(len(numbers)), caps):
        for scale in scales[2 * at : 2 * at + 2]:
            yield _chain(scale, cap)
            yield _chain(cap, scale)


def _declared(config: dict[str, Any]) -> list[float]:
    factors: dict[float, None] = {}
    for key, value in config.items():
        if isinstance(value, dict) and key.endswith("config"):
            factors.update(dict.fromkeys(_declared(value)))
        elif any(word in key for word in _CONFIG_WORDS) and type(value) in (int, float):
            factors[float(value)] = None
    return [number for number in factors if math.isfinite(number) and number not in (0, 1)]


def _soft_cap(cap: float) -> LogitTransform:
    return lambda logits: logits.div_(cap).tanh_().mul_(cap)


def _scale(factor: float) -> LogitTransform:
    return lambda logits: logits.mul_(factor)


def _chain(first: LogitTransform, then: LogitTransform) -> LogitTransform:
    return lambda logits: then(first(logits))


def launch_nll(
    hidden: Tensor, targets: Tensor, head: VocabularyHead, tile: TileShape | None = None
) -> Callable[[], Tensor]:
    """Begin to compute the NLL of each target, without waiting for a GPU.

    `hidden` is the head's input, shape ``[positions, hidden]``; `targets` are token ids on the host, ``[positions]``.
    Return a function that waits for the NLLs in nats, shape ``[positions]``, float64, on the host. They are not finite
    if the logits are not, or if the target's probability is zero.
    """
    # A head may live on another device than the layers before it.
    hidden = hidden.to(head.weight)
    tile = tile or tile_shape(hidden.device)
    buffer = Logits(hidden, head).buffer(tile)
    block = _cpu_block if hidden.device.type == "cpu" else _accelerator_block
    parts = [
        block(rows, wanted, head, buffer, tile.tokens)
        for rows, wanted in zip(hidden.split(tile.rows), targets.split(tile.rows), strict=True)
    ]
    launched = torch.cat(parts) if parts else torch.zeros(0)

    def wait() -> Tensor:
        nll = launched.cpu().double()
        again = (~nll.isfinite()).nonzero()[:, 0]
        for some in again.split(tile.rows) if len(again) else ():
            rows = hidden[some.to(hidden.device)]
            buffer = Logits(rows, head).buffer(tile)  # not the first one, which batches that wait would hold
            nll[some] = _safe_block(rows, targets[some], head, buffer, tile.tokens).cpu().double()
        return nll

    return wait


def _cpu_block(hidden: Tensor, targets: Tensor, head: VocabularyHead, buffer: Tensor, tokens: int) -> Tensor:
    shift = head.at(hidden, targets)
    within_reach = bool((shift.abs() <= _UNSHIFTED).all())
    total = torch.zeros(len(targets), dtype=torch.float64)
    target_logit = torch.empty_like(total)
    for begin, end, rows, columns in vocabulary_tiles(targets, head.vocabulary_size, tokens, hidden.device):
        logits = head.tile(hidden, begin, end, buffer)
        target_logit[rows] = logits[rows, columns].to(total.dtype)
        shifted = logits if within_reach else logits.sub_(shift[:, None])
        total += shifted.exp_().sum(-1)
    nll = total.log() - target_logit
    return nll if within_reach else nll + shift.to(nll.dtype)


def _accelerator_block(hidden: Tensor, targets: Tensor, head: VocabularyHead, buffer: Tensor, tokens: int) -> Tensor:
    """The same with the fused kernel of `log_softmax`, which reads a tile once: half of the passes over its memory.

    A tile's log-sum-exp is the first logit less its log-probability; if that logit is minus infinity it is NaN, and
    the row is done again.
    """
    sums = []
    target_logit = torch.empty(len(targets), dtype=wide(hidden.device), device=hidden.device)
    for begin, end, rows, columns in vocabulary_tiles(targets, head.vocabulary_size, tokens, hidden.device):
        logits = head.tile(hidden, begin, end, buffer)
        target_logit[rows] = logits[rows, columns].to(target_logit.dtype)
        sums.append(logits[:, 0] - torch.log_softmax(logits, -1)[:, 0])
    return torch.stack(sums).to(target_logit.dtype).logsumexp(0) - target_logit


def _safe_block(hidden: Tensor, targets: Tensor, head: VocabularyHead, buffer: Tensor, tokens: int) -> Tensor:
    """The same with a running maximum: one more pass over each tile, and no overflow."""
    highest = torch.full((len(targets),), -torch.inf, dtype=wide(hidden.device), device=hidden.device)
    total = torch.zeros_like(highest)
    target_logit = torch.empty_like(highest)
    for begin, end, rows, columns in vocabulary_tiles(targets, head.vocabulary_size, tokens, hidden.device):
        logits = head.tile(hidden, begin, end, buffer)
        target_logit[rows] = logits[rows, columns].to(total.dtype)
        new = torch.maximum(highest, logits.amax(-1).to(total.dtype))
        # exp(-inf - -inf) is NaN: a row without a finite logit so far adds nothing.
        scale = torch.where(highest == -torch.inf, torch.zeros_like(total), (highest - new).exp())
        base = torch.where(new == -torch.inf, torch.zeros_like(new), new)
        total = total * scale + (logits.to(total.dtype) - base[:, None]).exp().sum(-1)
        highest = new
    return total.log() + highest - target_logit


class Batch(NamedTuple):
    """Requests as tensors."""

    model: Any  # in evaluation mode; an encoder-decoder is bound to the sources
    ids: Tensor  # token ids, shape ``[requests, tokens]``, padded on the right, on the model's device
    rows: Tensor  # the row in which each target is predicted, shape ``[targets]``
    columns: Tensor  # the position whose state predicts it, shape ``[targets]``
    targets: Tensor  # token ids, shape ``[targets]``, on the host

    def at(self, numbers: Tensor) -> Tensor:
        """Pick the numbers that predict each target from those after each token: shape ``[targets, numbers]``."""
        return numbers[sent(self.rows, numbers.device), sent(self.columns, numbers.device)]


@dataclass(frozen=True)
class Scorer:
    """Scores a model's targets by its head that is split off, or by the model's own logits if that is None."""

    name: str
    split: SplitHead | None

    @property
    def head(self) -> VocabularyHead | None:
        return None if self.split is None else self.split.head

    def launch_plain(self, batch: Batch) -> Callable[[], Tensor]:
        """Compute the NLL of each target by the model's own logits; see `launch_nll`."""
        logits = self.read(batch.model, batch.ids)
        check_ids(int(batch.targets.max()), logits.shape[-1], self.name)
        # A few positions are upcast at a time.
        step, device = max(1, _LOGITS // logits.shape[-1]), logits.device
        parts = []
        for row, column, target in zip(*(tensor.split(step) for tensor in batch[2:]), strict=True):
            some = torch.log_softmax(logits[sent(row, device), sent(column, device)].to(wide(device)), -1)
            parts.append(-some.gather(-1, sent(target, device)[:, None])[:, 0])
        nll = torch.cat(parts)
        return lambda: nll.cpu().double()

    def some_logits(self, model: Any, ids: Tensor) -> Tensor:
        """Return logits after each token, shape ``[batch, tokens, up to 4096]``, spread evenly over the vocabulary."""
        states = self.read(model, ids)
        if self.head is None:
            return states[..., :: -(-states.shape[-1] // _SOME)]
        head = self.head.every(-(-self.head.vocabulary_size // _SOME))
        hidden, size = states.flatten(0, 1).to(head.weight), head.vocabulary_size
        buffer = torch.empty(len(hidden) * size, dtype=head.dtype, device=hidden.device)
        return head.tile(hidden, 0, size, buffer).view(*ids.shape, size)

    def read(self, model: Any, ids: Tensor, cache: Any = None) -> Tensor:
        """Return the head's input, or logits without a head, after each token: shape ``[batch, tokens, numbers]``.

        With a cache of keys and values, which needs a head, the ids follow what it holds.
        """
        states, before = None, random_states()
        while True:
            if cache is None:
                forget_lengths(model, ids)
            if self.split is None:
                now = logits_of(model, ids)
            else:
                with capture_hidden(self.split.module) as captured:
                    model(**inputs_of(model, ids, cache))
                now = captured.pop()
            if states is not None and not differ_by_rounding(states, now):
                raise not_deterministic(self.name)
            drawn = any(not torch.equal(one, other) for one, other in zip(before, random_states(), strict=True))
            if states is not None or cache is not None or not drawn:
                return now if states is None else states
            states = now  # a model that draws random numbers is read twice
