"""A causal model as a list of blocks, and copies of it of which only a part runs.

`lmgate why`, `lmgate fix` and `lmgate drill` change one block of a model at a time. A copy shares the model's tensors.
The blocks in front of the first changed one give the same hidden states for the same batch, so they run once and are
remembered.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pytest_lmgate.engines.base import Model, Runner
from pytest_lmgate.engines.transformers.head import logits_of
from pytest_lmgate.engines.transformers.loading import LoadedModel
from pytest_lmgate.engines.transformers.runner import TransformersRunner
from pytest_lmgate.errors import ModelError
from pytest_lmgate.tools.parts.private import shallow_copy

Kind = Literal["block", "qkv", "o", "up", "down", "experts", "rest", "embeddings", "head", "outside"]

# The linear layers of a block that quantizers treat as one, by the names that transformers' models give them. The same
# name may be in the attention and in the MLP, so the path before it decides.
_ATTENTION = re.compile(r"att")
_IN_ATTENTION: dict[Kind, re.Pattern[str]] = {
    "qkv": re.compile(
        r"([qkv]|query|key|value)(_proj)?|qkv(_proj)?|c_attn|query_key_value|W(qkv|_pack)|[qk]v?_[ab]_proj(_with_mqa)?"
    ),
    "o": re.compile(r"(o|out|c)_proj|dense|wo"),
}
_IN_MLP: dict[Kind, re.Pattern[str]] = {
    "up": re.compile(r"(gate|up|gate_up)_proj|fc1|fc_in|c_fc|dense_h_to_4h|w[13]"),
    "down": re.compile(r"(down|c)_proj|fc2|fc_out|dense_4h_to_h|w2"),
}
_TRIAL_TOKENS = 16


@dataclass(frozen=True)
class BlockModel:
    """A model and its list of blocks."""

    loaded: LoadedModel
    path: str  # of the list of its blocks

    @property
    def blocks(self) -> list[nn.Module]:
        found: Any = self.loaded.model.get_submodule(self.path)
        return list(found)

    def __getitem__(self, path: str) -> nn.Module:
        found: nn.Module = self.loaded.model.get_submodule(path)
        return found


def kind_of(name: str) -> Kind | None:
    """Return what the linear layer with this path in a block is; None if it has no known name."""
    *before, last = name.split(".")
    kinds = _IN_ATTENTION if any(map(_ATTENTION.search, before)) else _IN_MLP
    return next((kind for kind, pattern in kinds.items() if pattern.fullmatch(last)), None)


def with_blocks(model: Model, runner: Runner) -> BlockModel:
    """Return a model's blocks; ModelError if it has none that copies can share."""
    if not isinstance(runner, TransformersRunner) or model.kind != "causal":
        raise ModelError(f"model {model.name!r}: expected a causal model that transformers runs")
    return block_list(runner.loaded, model.name)


def block_list(loaded: LoadedModel, name: str) -> BlockModel:
    """Return the blocks of a loaded model, called `name` in messages; ModelError if copies cannot share them."""
    if any("forward" in vars(module) and any(module.children()) for module in loaded.model.modules()):
        raise ModelError(  # a copy would run the module that it was copied from
            f"model {name!r}: expected modules that no library has wrapped, as accelerate does to spread a model "
            "over devices; load it on one device, without device_map"
        )
    lists = [
        (path, module)
        for path, module in loaded.model.named_modules()
        if isinstance(module, nn.ModuleList) and len({type(block) for block in module}) == 1
    ]
    if not lists:
        raise ModelError(f"model {name!r}: expected blocks in a list, as transformers' decoders have them")
    # The outermost of lists of equal length: the experts of a block are a list too.
    path, _ = max(lists, key=lambda block_list: (len(block_list[1]), -block_list[0].count(".")))
    return BlockModel(loaded, path)


def linear_layers(module: nn.Module) -> list[tuple[str, Any]]:
    """Return the linear layers of a module by their paths in it, without those of an adapter."""
    return [
        (name, layer)
        for name, layer in module.named_modules()
        if isinstance(weight := getattr(layer, "weight", None), Tensor)
        and weight.ndim == 2
        and not isinstance(layer, nn.Embedding)
        and "lora_" not in name
    ]


def output_axis(layer: nn.Module) -> int:
    """Return the axis of a weight along which a linear layer's outputs lie; transformers' Conv1D transposes it."""
    return 1 if type(layer).__name__ == "Conv1D" else 0


def copied(loaded: LoadedModel) -> LoadedModel:
    """Copy a model with its configuration and all modules; the tensors of both are the same."""
    model = loaded.model
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return replace(loaded, model=copy.deepcopy(model, shared))


def holders(model: nn.Module, parameter: Tensor) -> list[tuple[nn.Module, str]]:
    """Return the modules that hold a parameter, with its name there: those of tied weights are several."""
    return [
        (module, name)
        for module in model.modules()
        for name, held in module.named_parameters(recurse=False)
        if held is parameter
    ]


def put_parameter(model: nn.Module, old: Tensor, new: Tensor) -> None:
    """Replace a parameter wherever a model has it: tied weights stay tied."""
    parameter = nn.Parameter(new.to(old.dtype), requires_grad=False)
    for module, name in holders(model, old):
        setattr(module, name, parameter)


class BlockMemory:
    """What the blocks in front of a changed block gave, by the token ids of the batch.

    For each batch it keeps `most_levels` outputs, those used last; `most_bytes` for all batches at each level.
    """

    most_bytes: float = 2**30

    def __init__(self, most_levels: int = 2) -> None:
        self.most_levels = most_levels
        self._outputs: dict[Any, dict[int, Any]] = {}  # by batch, then by level, the one that was used last at the end
        self._bytes = 0
        self._key: Any = None

    def begin(self, _: nn.Module, __: Any, kwargs: dict[str, Any]) -> None:
        ids = kwargs["input_ids"].cpu()
        self._key = tuple(ids.shape), ids.numpy().tobytes()

    def read(self, level: int, index: int) -> Any:
        """Return the last output that is known in front of `level`, or None if block `index` lies behind it."""
        outputs = self._outputs.get(self._key, {})
        known = max((at for at in outputs if at <= level), default=0)
        if index >= known:
            return None
        outputs[known] = outputs.pop(known)
        return _map(outputs[known], Tensor.clone)  # a model may change its states in place

    def write(self, level: int, output: Any) -> None:
        outputs, kept, most = self._outputs.setdefault(self._key, {}), _map(output, Tensor.clone), self.most_levels
        while outputs and (len(outputs) >= most or self._bytes + _size(kept) > most * self.most_bytes):
            self._bytes -= _size(outputs.pop(next(iter(outputs))))
        if self._bytes + _size(kept) <= most * self.most_bytes:
            outputs[level], self._bytes = kept, self._bytes + _size(kept)


class Replay(nn.Module):
    """A block in front of the first changed block: it returns its remembered output, else it runs and remembers."""

    def __init__(self, block: nn.Module, memory: BlockMemory, index: int, level: int) -> None:
        super().__init__()
        self.block, self._place = block, (memory, index, level)
        self.training = False

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("block"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        memory, index, level = self._place
        if (stored := memory.read(level, index)) is not None:
            return stored
        output = self.block(*args, **kwargs)
        if index == level - 1:
            memory.write(level, output)
        return output


def put_replays(copies: dict[str, nn.Module], model: BlockModel, level: int, memory: BlockMemory) -> None:
    """Have a copy of a model read what its blocks in front of the block number `level` gave from the memory."""
    copies[""].register_forward_pre_hook(memory.begin, with_kwargs=True)
    for index, block in enumerate(model.blocks[:level]):
        put_module(copies, f"{model.path}.{index}", Replay(block, memory, index, level))


def can_reuse(model: BlockModel) -> bool:
    """Return whether blocks pass on their output alone, by a trial: no block shares the state of another."""
    size = model.loaded.vocabulary_size or _TRIAL_TOKENS
    ids = torch.arange(2 * _TRIAL_TOKENS, device=model.loaded.device).view(2, -1) % size
    shell, memory = model.loaded.model, BlockMemory()
    try:
        expected = logits_of(shell, ids)
        for level in range(1, len(model.blocks) + 1):
            copies = {"": shallow_copy(shell)}
            put_replays(copies, model, level, memory)
            for _ in range(2):  # the second time nothing before the level runs
                if not torch.equal(logits_of(copies[""], ids), expected):
                    return False
    except Exception:  # anything: the model may not know these blocks
        return False
    return True


def put_module(copies: dict[str, nn.Module], path: str, module: nn.Module) -> None:
    """Put a module into the copy of a model; modules on the way that are not copies yet are replaced by copies."""
    inner, so_far = copies[""], ""
    *names, last = path.split(".")
    for name in names:
        so_far = f"{so_far}.{name}".strip(".")
        if so_far not in copies:
            copies[so_far] = shallow_copy(inner.get_submodule(name))
            inner.add_module(name, copies[so_far])
        inner = copies[so_far]
    inner.add_module(last, module)
    copies.pop(path, None)


def _size(output: Any) -> int:
    tensors = [output] if isinstance(output, Tensor) else output
    return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))


def _map(output: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to the tensors of a block's output."""
    if isinstance(output, Tensor):
        return function(output)
    return tuple(function(tensor) if isinstance(tensor, Tensor) else tensor for tensor in output)
