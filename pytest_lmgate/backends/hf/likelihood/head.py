"""The language-model head, split off: from hidden states to any tile of the logits, proven on the model at hand.

The model's own forward is run with its head's input cut to nothing, so that everything before the head (scaling,
projections, norms) is the model's own. What comes after the head (soft-capping, scaling) is found among the few forms
in use and then proven against ``model(...).logits``; a head that cannot be proven is not used.
"""

from __future__ import annotations

__all__ = ["LogitTransform", "VocabularyHead", "capture_hidden", "prove_head"]

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pytest_lmgate.backends.hf.likelihood.forward import logits_of, run
from pytest_lmgate.errors import EngineError

LogitTransform = Callable[[Tensor], Tensor]

# Numbers in a config under such names may act on the logits.
_CONFIG_WORDS = ("logit", "softcap", "soft_cap", "cap", "head_multiplier", "output_multiplier", "scal")
_PROOF_TOKENS = 24
_PROOF_ROWS = 8


@dataclass(frozen=True)
class VocabularyHead:
    """A linear head with an elementwise transform behind it.

    Attributes:
        weight: Shape ``[vocabulary, hidden]``.
        bias: Shape ``[vocabulary]``, or None.
        transform: In-place map from the linear output to the logit, or None.
    """

    weight: Tensor
    bias: Tensor | None
    transform: LogitTransform | None

    @property
    def vocabulary_size(self) -> int:
        """Logits per position."""
        return self.weight.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the matrix product, the model's own."""
        return self.weight.dtype

    def every(self, step: int) -> VocabularyHead:
        """Return the head of the tokens ``0, step, 2 * step, ...`` alone."""
        return VocabularyHead(self.weight[::step], None if self.bias is None else self.bias[::step], self.transform)

    def tile(self, hidden: Tensor, begin: int, end: int, buffer: Tensor) -> Tensor:
        """Return the logits of the tokens ``begin..end-1``, shape ``[positions, end - begin]``, in float32 or better.

        Args:
            hidden: Shape ``[positions, hidden]``, in the head's dtype.
            begin: First token id of the tile.
            end: One past its last.
            buffer: Scratch of at least as many elements in the head's dtype, which the logits may lie in.
        """
        out = buffer[: hidden.shape[0] * (end - begin)].view(hidden.shape[0], end - begin)
        weight = self.weight[begin:end].t()
        if self.bias is None:
            torch.mm(hidden, weight, out=out)
        else:
            torch.addmm(self.bias[begin:end], hidden, weight, out=out)
        return self._finished(out)

    def at(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return about the logit of one target per position, shape ``[positions]``; the tile's own is exact."""
        raw = (hidden * self.weight[targets]).sum(-1)
        if self.bias is not None:
            raw = raw + self.bias[targets]
        return self._finished(raw)

    def _finished(self, product: Tensor) -> Tensor:
        logits = product if product.dtype in (torch.float32, torch.float64) else product.float()
        return logits if self.transform is None else self.transform(logits)


@contextlib.contextmanager
def capture_hidden(module: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the input of the head `module`, ``[batch, tokens, hidden]``, and spare it the work."""
    captured: list[Tensor] = []

    def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        hidden, *rest = args
        captured.append(hidden)
        return (hidden[:, :0], *rest), kwargs

    handle = module.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        yield captured
    finally:
        handle.remove()


def prove_head(model: Any, ids: Tensor) -> tuple[VocabularyHead, nn.Module] | None:
    """Split off the head of `model`, if that can be proven right on `ids`.

    Args:
        model: A causal model in evaluation mode.
        ids: Token ids on the model's device, shape ``[tokens]``; a few are enough.

    Returns:
        The head and the module whose input it takes, or None where the model's own logits must be used.
    """
    try:
        module = model.get_output_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    if not _is_plain_linear(module):
        return None
    weight, bias = module.weight.detach(), None if module.bias is None else module.bias.detach()
    ids = ids[None, :_PROOF_TOKENS]
    try:
        with capture_hidden(module) as captured:
            run(model, ids)
        logits = logits_of(model, ids)[0, -_PROOF_ROWS:]
        probe, image = _probe(model, module, ids)
    except (EngineError, RuntimeError, TypeError, ValueError, LookupError):
        return None
    if len(captured) != 1 or captured[0].shape != (*ids.shape, weight.shape[1]):
        return None
    if logits.shape[-1] != weight.shape[0] or image.shape != probe.shape:
        return None
    hidden = captured[0][0, -_PROOF_ROWS:].to(weight)
    buffer = torch.empty(logits.numel(), dtype=weight.dtype, device=weight.device)
    for transform in _candidates(getattr(model, "config", None)):
        head = VocabularyHead(weight, bias, transform)
        if not _agree(probe.clone() if transform is None else transform(probe.clone()), image, image.dtype):
            continue
        if _agree(head.tile(hidden, 0, head.vocabulary_size, buffer), logits, weight.dtype):
            return head, module
    return None


def _is_plain_linear(module: object) -> bool:
    """Whether a head computes ``hidden @ weight.T + bias`` and nothing else.

    A subclass (quantized, adapter-wrapped), or a weight of a type of its own (torchao, DTensor), may compute anything.
    """
    return (
        type(module) is nn.Linear
        and type(module.weight) is nn.Parameter
        and module.weight.dtype.is_floating_point
        and not module.weight.is_meta
    )


def _probe(model: Any, module: nn.Module, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Let the model itself transform known numbers in place of its head's output.

    The numbers span a range that real logits may not reach on a few tokens, where a soft-cap would go unnoticed, and
    are float32 or better, so that a factor near 1 does not pass for the rounding of a half precision.
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
    """Whether two results of the same formula differ by the rounding of `dtype` only; false for NaN."""
    tolerance = max(4 * torch.finfo(dtype).eps, 1e-5)
    ours, theirs = ours.cpu().double(), theirs.cpu().double()
    error = (ours - theirs).abs().max()
    return bool(error <= tolerance * max(1e-3, theirs.abs().max().item()))


def _candidates(config: Any) -> Iterator[LogitTransform | None]:
    """Yield the transforms that the config may mean, none at all first."""
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
    found: dict[float, None] = {}
    for key, value in config.items():
        if isinstance(value, dict) and key.endswith("config"):
            found.update(dict.fromkeys(_declared(value)))
        elif any(word in key for word in _CONFIG_WORDS) and type(value) in (int, float):
            found[float(value)] = None
    return [number for number in found if math.isfinite(number) and number not in (0, 1)]


def _soft_cap(cap: float) -> LogitTransform:
    return lambda logits: logits.div_(cap).tanh_().mul_(cap)


def _scale(factor: float) -> LogitTransform:
    return lambda logits: logits.mul_(factor)


def _chain(first: LogitTransform, then: LogitTransform) -> LogitTransform:
    return lambda logits: then(first(logits))
