"""Hybrids of two causal models of one shape: one model with some parts of the other.

A hybrid shares the weights of both and so takes no memory. `lmgate why` and `lmgate fix` measure hybrids to find the
parts that a quantization or a fine-tune made worse. A hybrid whose first changed block is block i reads what block i-1
of the unchanged model gave for the same batch, so it costs the blocks from i on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pytest_lmgate.engines.base import Model, Runner
from pytest_lmgate.engines.transformers.forward import logits_of
from pytest_lmgate.engines.transformers.loading import LoadedModel
from pytest_lmgate.engines.transformers.runner import TransformersRunner
from pytest_lmgate.errors import ModelError
from pytest_lmgate.tools.fix.private import shallow_copy

OUTSIDE = "outside of the blocks"
"""The part that is no block: embeddings, the last norm and the head, which may share weights."""
By = Literal["block", "group"]
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
_MOST_BYTES = 2**30  # of remembered hidden states in front of one block


@dataclass(frozen=True)
class Part:
    """A part of a model that a hybrid takes whole from one of the two models."""

    name: str  # as people read it
    kind: Kind  # what it is; ``rest`` are a block's norms and what else is in no group of the block
    # Paths of its modules. A block's path stands for what no other part of the block has, and the empty path for what
    # no other part of the model has.
    paths: tuple[str, ...]
    block: int | None = None  # number of its block; None outside of the blocks


@dataclass(frozen=True)
class PartSize:
    """What a part weighs."""

    bytes: tuple[int, int]  # of its stored tensors, in the reference and in the candidate
    matrices: tuple[int, int]  # numbers in the reference's matrices, which a quantizer may round, and their bytes


@dataclass(frozen=True)
class _Loaded:
    loaded: LoadedModel
    path: str  # of the list of its blocks

    @property
    def blocks(self) -> list[nn.Module]:
        found: Any = self.loaded.model.get_submodule(self.path)
        return list(found)

    def __getitem__(self, path: str) -> nn.Module:
        found: nn.Module = self.loaded.model.get_submodule(path)
        return found


def described_hybrid(
    models: tuple[Model, Model], parts: Sequence[Part], exchanged: str, open_: Callable[[], Runner], *, healed: bool
) -> Model:
    """Return the model that a hybrid of a reference and a candidate is.

    `exchanged` are the parts in words, for its address in the cache. If `healed`, it is the candidate with the
    reference's parts, rather than the other way round.
    """
    reference, candidate = models
    whole, other = (candidate, reference) if healed else (reference, candidate)
    names = parts[0].name if len(parts) == 1 else f"{len(parts)} parts"
    return replace(
        whole,
        name=f"{whole.name} with {names} of {other.name}",
        open=open_,
        content={
            **{f"hybrid/{key}": value for key, value in (whole.content or {}).items()},
            **{f"part/{key}": value for key, value in other.ingredients.items()},
            "part": exchanged,
        },
        in_memory=True,
        not_kept=reference.not_kept or candidate.not_kept,
    )


class Hybrids:
    """Hybrids of a reference and a candidate of the same architecture and shape, both loaded by transformers.

    They are compared with the `original` and its runner, if it is not the reference.
    """

    def __init__(
        self,
        reference: Model,
        candidate: Model,
        runners: Sequence[Runner],
        *,
        by: By = "block",
        original: tuple[Model, Runner] | None = None,
    ) -> None:
        self._described = reference, candidate
        self._models = tuple(
            _with_blocks(model, runner) for model, runner in zip(self._described, runners, strict=True)
        )
        ours, theirs = self._models
        if (ours.path, len(ours.blocks)) != (theirs.path, len(theirs.blocks)):
            raise ModelError(
                f"models {candidate.name!r} and {reference.name!r} have different blocks: "
                f"{len(theirs.blocks)} in {theirs.path} and {len(ours.blocks)} in {ours.path}; expected a "
                "quantization or a fine-tune of the same model"
            )
        if ours.loaded.device != theirs.loaded.device:
            raise ModelError(
                f"model {candidate.name!r} is on {theirs.loaded.device}, and {reference.name!r} on "
                f"{ours.loaded.device}: expected both on one device, because a batch passes through blocks of both"
            )
        if ours.loaded.model.dtype != theirs.loaded.model.dtype:
            raise ModelError(
                f"model {candidate.name!r} computes in {_name(theirs)}, and {reference.name!r} in "
                f"{_name(ours)}: expected one dtype, because a batch passes through blocks of both; give both models "
                f"the same `dtype:`, such as `dtype: {_name(ours)}`"
            )
        self._all = list(_parts(*self._models, by=by))
        self._known = {path for part in self._all for path in part.paths}
        # In the order of the model: each block, or each group of its linear layers that differs between the two models,
        # and those outside of the blocks.
        self.parts = [part for part in self._all if by == "block" or self._differs(part, theirs)]
        with runners[0].measuring(), runners[1].measuring():
            # Whether hidden states of the reference, and of the candidate, can be reused.
            self.reuses = tuple(map(_can_reuse, self._models))
        self._memories = _Memory(), _Memory()
        first, own = original or (reference, runners[0])
        self._original, reuses = ours, self.reuses[0]
        if original is not None:
            self._original = _with_blocks(first, own)
            with own.measuring():
                reuses = _can_reuse(self._original)
        last = len(self._original.blocks) if reuses else 0
        runner = TransformersRunner(self._assembled(self._original, {}, last, _Memory()), first.context)
        # The original, which computes its blocks once for each batch.
        self.reference = replace(first, open=lambda: runner, in_memory=True)

    def model(self, *parts: Part, healed: bool) -> Model:
        """Return the reference with parts of the candidate or, if `healed`, the candidate with the reference's."""
        names = ", ".join(part.name for part in parts)
        return described_hybrid(self._described, parts, names, lambda: self._opened(parts, healed), healed=healed)

    def size(self, part: Part | None = None) -> PartSize:
        """Return what a part weighs, or the whole; tensors that several modules share count once."""
        ours, theirs = (self._tensors(model, part) for model in self._models)
        matrices = [each for each in ours if each.ndim >= 2]
        return PartSize((_bytes(ours), _bytes(theirs)), (sum(each.numel() for each in matrices), _bytes(matrices)))

    def linear(self, part: Part) -> list[str]:
        """Return the paths of the linear layers of a part, of fused experts that of all of them."""
        found, model = [], self._models[0]
        for path in part.paths:
            for name, module in model[path].named_modules(prefix=path):
                weight = getattr(module, "weight", None)
                is_linear = isinstance(weight, Tensor) and weight.ndim == 2 and not isinstance(module, nn.Embedding)
                if (is_linear or (name == path and part.kind == "experts")) and self._owner(name) == path:
                    found.append(name)
        return found

    @property
    def unchanged(self) -> list[Part]:
        """The parts that both models have alike."""
        return [part for part in self._all if part not in self.parts]

    def is_original(self, part: Part) -> bool:
        """Return whether the reference has a part as the original does."""
        names = {name for name, _ in self._original.loaded.model.named_modules()}
        return names.issuperset(part.paths) and not self._differs(part, self._original)

    def _opened(self, parts: Sequence[Part], healed: bool) -> TransformersRunner:
        whole, other = self._models[::-1] if healed else self._models
        changed = {path: other for part in parts for path in part.paths}
        level = 0
        if len(parts) == 1 and self.reuses[healed]:  # the head follows all blocks; embeddings come before them
            level = len(whole.blocks) if parts[0].kind == "head" else parts[0].block or 0
        model = self._assembled(whole, changed, level, self._memories[healed])
        runner = TransformersRunner(model, self._described[0].context)
        runner.is_tried = True  # both models were
        return runner

    def _assembled(self, whole: _Loaded, changed: Mapping[str, _Loaded], level: int, memory: _Memory) -> LoadedModel:
        """Return a copy of a model with some modules of another; only modules on the way to these are copied.

        The copy reads what was in front of the block number `level` from the memory.
        """
        chosen = {path: changed.get(path, whole) for part in self._all for path in part.paths}
        model = shallow_copy(chosen[""].loaded.model)
        copies: dict[str, nn.Module] = {"": model}
        for path in sorted(chosen, key=lambda path: (path.count("."), len(path))):
            if path and chosen[path] is not chosen[self._parent(path)]:
                _put(copies, path, chosen[path][path])
        if level:
            for index, block in enumerate(whole.blocks[:level]):
                _put(copies, f"{whole.path}.{index}", _Replay(block, memory, index, level))
            model.register_forward_pre_hook(memory.begin, with_kwargs=True)
        return replace(whole.loaded, model=model)

    def _parent(self, path: str) -> str:
        """Return the path that holds a path's module where no part says otherwise: its block's, or the model's."""
        return self._owner(path.rpartition(".")[0])

    def _owner(self, name: str) -> str:
        """Return the path among those of all parts that a module belongs to."""
        while name and name not in self._known:
            name = name.rpartition(".")[0]
        return name

    def _tensors(self, model: _Loaded, part: Part | None) -> list[Tensor]:
        held: dict[int | str, Tensor] = {}
        for path in part.paths if part else ("",):
            for name, tensor in model[path].state_dict(prefix=f"{path}." if path else "").items():
                is_own = part is None or self._owner(name.rpartition(".")[0]) == path
                if isinstance(tensor, Tensor) and is_own:
                    held |= {each.data_ptr() or at: each for at, each in _plain(name, tensor)}
        return list(held.values())

    def _differs(self, part: Part, other: _Loaded) -> bool:
        ours, theirs = (self._tensors(model, part) for model in (self._models[0], other))
        return len(ours) != len(theirs) or not all(map(_equal, ours, theirs))


class _Memory:
    """What the blocks in front of the first changed block gave, by the token ids of the batch."""

    def __init__(self) -> None:
        self._outputs: dict[int, dict[Any, Any]] = {}
        self._bytes: dict[int, int] = {}
        self._key: Any = None

    def begin(self, _: nn.Module, __: Any, kwargs: dict[str, Any]) -> None:
        ids = kwargs["input_ids"].cpu()
        self._key = tuple(ids.shape), ids.numpy().tobytes()

    def read(self, level: int, index: int) -> Any:
        """Return the output of block `index`, or None; before `level` the model needs only the last block's.

        If only what is in front of the block before is known, that block has to be run.
        """
        found = self._outputs.get(level, {}).get(self._key)
        if found is None and index < level - 1:
            found = self._outputs.get(level - 1, {}).get(self._key)
        return None if found is None else _map(found, Tensor.clone)  # a model may change its states in place

    def write(self, level: int, output: Any) -> None:
        self._outputs = {key: self._outputs.get(key, {}) for key in (level - 1, level)}
        kept = _map(output, Tensor.clone)
        used = self._bytes.get(level, 0) + sum(each.nbytes for each in _tensors(kept))
        if used <= _MOST_BYTES:
            self._outputs[level][self._key], self._bytes[level] = kept, used


class _Replay(nn.Module):
    """A block in front of the first changed block: it gives what is remembered, else it runs and remembers."""

    def __init__(self, block: nn.Module, memory: _Memory, index: int, level: int) -> None:
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
        if (found := memory.read(level, index)) is not None:
            return found
        output = self.block(*args, **kwargs)
        if index == level - 1:
            memory.write(level, output)
        return output


def _can_reuse(model: _Loaded) -> bool:
    """Find out by trial whether blocks pass nothing on but what they return: no state of another block is shared."""
    size = model.loaded.vocabulary_size or _TRIAL_TOKENS
    ids = torch.arange(2 * _TRIAL_TOKENS, device=model.loaded.device).view(2, -1) % size
    shell, memory = model.loaded.model, _Memory()
    try:
        expected = logits_of(shell, ids)
        for level in range(1, len(model.blocks) + 1):
            copies = {"": shallow_copy(shell)}
            for index, block in enumerate(model.blocks[:level]):
                _put(copies, f"{model.path}.{index}", _Replay(block, memory, index, level))
            for _ in range(2):  # the second time nothing before the level runs
                memory.begin(shell, (), {"input_ids": ids})
                if not torch.equal(logits_of(copies[""], ids), expected):
                    return False
    except Exception:  # anything: the model may not know these blocks
        return False
    return True


def _parts(ours: _Loaded, theirs: _Loaded, *, by: By) -> Iterator[Part]:
    for index, block in enumerate(ours.blocks):
        path = f"{ours.path}.{index}"
        groups = _groups(path, block, theirs) if by == "group" else {}
        for kind, paths in groups.items():
            yield Part(f"{path} {kind}", kind, tuple(paths), index)
        yield Part(f"{path} rest" if groups else path, "rest" if groups else "block", (path,), index)
    if by == "block":
        yield Part(OUTSIDE, "outside", ("",))
        return
    model = ours.loaded.model
    embeddings = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and not name.startswith(f"{ours.path}.")
    ]
    output = model.get_output_embeddings()
    head = [name for name, module in model.named_modules() if output is not None and module is output]
    tied = any(_is_tied(each.loaded.model) for each in (ours, theirs))
    if tied:
        yield Part("embeddings and head", "embeddings", tuple(dict.fromkeys([*embeddings, *head])))
    else:
        if head:
            yield Part("head", "head", tuple(head))
        if embeddings:
            yield Part("embeddings", "embeddings", tuple(embeddings))
    yield Part(f"rest {OUTSIDE}", "outside", ("",))


def _groups(path: str, block: nn.Module, other: _Loaded) -> dict[Kind, list[str]]:
    """Return the paths of the modules of each group of a block; none if most of its weights are in no group."""
    found: dict[Kind, list[str]] = {}
    for name, module in block.named_modules():
        *before, last = name.split(".")
        if "experts" in before or not name:
            continue
        kinds = _IN_ATTENTION if any(map(_ATTENTION.search, before)) else _IN_MLP
        kind = next((kind for kind, pattern in kinds.items() if pattern.fullmatch(last)), None)
        if last == "experts":
            kind = "experts"
        elif next(module.children(), None) is not None or not any(True for _ in module.parameters(recurse=False)):
            continue
        if kind is not None:
            found.setdefault(kind, []).append(f"{path}.{name}")
    theirs = {name for name, _ in other.loaded.model.named_modules()}
    if not all(name in theirs for names in found.values() for name in names):
        return {}
    modules = [block.get_submodule(name.removeprefix(f"{path}.")) for names in found.values() for name in names]
    grouped = sum(each.numel() for module in modules for each in module.parameters())
    return found if 2 * grouped > sum(each.numel() for each in block.parameters()) else {}


def _is_tied(model: Any) -> bool:
    output, given = model.get_output_embeddings(), model.get_input_embeddings()
    return output is not None and getattr(output, "weight", None) is getattr(given, "weight", output)


def _with_blocks(model: Model, runner: Runner) -> _Loaded:
    if not isinstance(runner, TransformersRunner) or model.kind != "causal":
        raise ModelError(f"model {model.name!r}: expected a causal model that transformers runs")
    if any("forward" in vars(module) and any(module.children()) for module in runner.loaded.model.modules()):
        raise ModelError(  # a copy would run the module that it was copied from
            f"model {model.name!r}: expected modules that no library has wrapped, as accelerate does to spread a model "
            "over devices; load it on one device, without device_map"
        )
    lists = [
        (path, module)
        for path, module in runner.loaded.model.named_modules()
        if isinstance(module, nn.ModuleList) and len({type(block) for block in module}) == 1
    ]
    if not lists:
        raise ModelError(f"model {model.name!r}: expected blocks in a list, as transformers' decoders have them")
    # The outermost of lists of equal length: the experts of a block are a list too.
    path, _ = max(lists, key=lambda each: (len(each[1]), -each[0].count(".")))
    return _Loaded(runner.loaded, path)


def _name(model: _Loaded) -> str:
    return str(model.loaded.model.dtype).removeprefix("torch.")


def _put(copies: dict[str, nn.Module], path: str, module: nn.Module) -> None:
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


def _tensors(output: Any) -> list[Tensor]:
    return [each for each in ([output] if isinstance(output, Tensor) else output) if isinstance(each, Tensor)]


def _map(output: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to the tensors of a block's output."""
    if isinstance(output, Tensor):
        return function(output)
    return tuple(function(each) if isinstance(each, Tensor) else each for each in output)


def _plain(name: str, tensor: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that a tensor wraps, as torchao's do: these can be compared, and have the bytes in memory."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield name, tensor
        return
    for inner in tensor.__tensor_flatten__()[0]:
        yield from _plain(f"{name}.{inner}", getattr(tensor, inner))


def _bytes(tensors: Collection[Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and bool(torch.equal(one, other))
