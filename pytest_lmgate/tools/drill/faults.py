"""The faults: of weights and their arithmetic, of structure, of texts and of data; and the table of them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Any, ClassVar, Literal

import torch
from msgspec import structs
from torch import Tensor, nn

from pytest_lmgate.engines.transformers.blocks import kind_of, output_axis
from pytest_lmgate.errors import ConfigError, nearest
from pytest_lmgate.measure.rows import DatasetRows
from pytest_lmgate.tools.drill.planting import Broken, Fault, Kind, NotPlanted, matrices, rounded

_GROUP = "pytest_lmgate.faults"  # of entry points
_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
_OF_BLOCKS = "{:.0%} of the blocks"
_BEGIN = 16  # token from which positions are off: where a second part of a prompt could begin
_SEED = 1234
_BITS = (8, 7, 6, 5, 4, 3, 2)


@dataclass(frozen=True)
class RoundedBlock(Fault):
    at: float = 0.5  # place of the block: 0 is the first, 1 the last

    def plant(self, broken: Broken, level: float) -> None:
        broken.first = int(self.at * (len(broken.blocks) - 1) + 0.5)
        for _, layer in matrices(broken.blocks[broken.first]):
            broken.put(layer.weight, rounded(layer.weight, level, 1 - output_axis(layer)))


class Noise(Fault):
    def plant(self, broken: Broken, level: float) -> None:
        for name, layer in matrices(nn.ModuleList(broken.blocks)):
            weight, generator = layer.weight, torch.Generator().manual_seed(zlib.crc32(name.encode()))
            drawn = torch.randn(weight.shape, generator=generator).to(weight.device)
            broken.put(weight, weight.float() + level * weight.float().std() * drawn)


class DoubledScale(Fault):
    def plant(self, broken: Broken, level: float) -> None:
        layers = matrices(broken.middle())
        layer = next((layer for name, layer in layers if kind_of(name) == "down"), layers[-1][1])
        scales = torch.ones(layer.weight.shape[output_axis(layer)], device=layer.weight.device)
        scales[: math.ceil(level * len(scales))] = 2
        broken.put(layer.weight, layer.weight.float() * scales.unsqueeze(1 - output_axis(layer)))


class OtherLayer(Fault):
    def plant(self, broken: Broken, level: float) -> None:
        block = broken.middle()
        other = broken.blocks[broken.first - 1]
        if other is block:
            raise NotPlanted("it has one block only")
        name, layer = max(matrices(block), key=lambda entry: entry[1].weight.numel())
        theirs = dict(matrices(other)).get(name)
        if theirs is None or theirs.weight.shape != layer.weight.shape:
            raise NotPlanted("the layer before has no tensor of this name and shape")
        weight, axis = layer.weight.clone(), output_axis(layer)
        rows = math.ceil(level * weight.shape[axis])
        weight.narrow(axis, 0, rows).copy_(theirs.weight.narrow(axis, 0, rows))
        broken.put(layer.weight, weight)


@dataclass(frozen=True)
class LostVectors(Fault):
    """Biases, or weights of norms, are those of a new model."""

    what: Literal["bias", "norm"] = "bias"

    def plant(self, broken: Broken, level: float) -> None:
        lost: list[tuple[Tensor, Tensor]] = []
        for module in nn.ModuleList(broken.last(level)).modules():
            name, kind = ("weight", type(module).__name__) if self.what == "norm" else ("bias", "")
            held = getattr(module, name, None)
            if isinstance(held, nn.Parameter) and held.ndim == 1 and ("Norm" in kind or not kind):
                value = float(self.what == "norm" and "Gemma" not in kind)  # Gemma's multiply by 1 + weight
                lost.append((held, torch.full_like(held, value)))
        if all(torch.equal(*pair) for pair in lost):
            raise NotPlanted(f"its blocks have no {self.what} with a value of its own")
        for pair in lost:
            broken.put(*pair)


class LostAdapter(Fault):
    def plant(self, broken: Broken, level: float) -> None:
        layers = [module for module in broken.model.modules() if hasattr(module, "lora_A") and module.scaling]
        if not layers:
            raise NotPlanted("it has no LoRA adapter")
        for layer in layers:
            layer.scaling = {name: scale * (1 - level) for name, scale in layer.scaling.items()}


@dataclass(frozen=True)
class Narrow(Fault):
    """Weights in a narrower type; of 8 bits, with one scale for each tensor."""

    dtype: torch.dtype = torch.bfloat16
    kind: ClassVar[Kind] = "arithmetic"

    def plant(self, broken: Broken, level: float) -> None:
        changes = False
        for block in broken.last(level):
            for _, layer in matrices(block):
                weight, scale = layer.weight, torch.ones((), device=layer.weight.device)
                if self.dtype.itemsize == 1:
                    scale = weight.float().abs().max() / torch.finfo(self.dtype).max
                narrow = (weight.float() / scale).to(self.dtype).float() * scale if scale > 0 else weight.float()
                changes = changes or not torch.equal(narrow.to(weight.dtype), weight)
                broken.put(weight, narrow)
        if not changes:
            raise NotPlanted(f"its weights have no more digits than {str(self.dtype).removeprefix('torch.')}")


class RoundedActivations(Fault):
    kind: ClassVar[Kind] = "arithmetic"

    def plant(self, broken: Broken, level: float) -> None:
        for _, layer in matrices(nn.ModuleList(broken.blocks)):
            layer.register_forward_pre_hook(lambda _, given: (rounded(given[0], level, -1), *given[1:]))


WEIGHTS: tuple[Fault, ...] = (
    RoundedBlock("round-first", "the first block is rounded to few bits", _BITS, "{:g} bits", 0),
    RoundedBlock("round-middle", "the middle block is rounded to few bits", _BITS, "{:g} bits", 0.5),
    RoundedBlock("round-last", "the last block is rounded to few bits", _BITS, "{:g} bits", 1),
    Noise("noise", "weights of all blocks have noise", (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1), "{:.0%} of their spread"),
    DoubledScale("scale", "a scale of the middle block is doubled", (1 / 64, *_SHARES), "{:.2g} of its rows"),
    OtherLayer("wrong-layer", "a tensor is the one of the block before", (1 / 64, *_SHARES), "{:.2g} of its rows"),
    LostVectors("bias", "biases are not loaded", _SHARES, _OF_BLOCKS),
    LostVectors("norm", "weights of norms are not loaded", _SHARES, _OF_BLOCKS, "norm"),
    LostAdapter("base", "the adapter is not applied", _SHARES[1:], "{:.0%} of it lost"),
    Narrow("bfloat16", "weights are rounded to bfloat16", _SHARES[1:], _OF_BLOCKS, torch.bfloat16),
    Narrow("float16", "weights are rounded to float16", _SHARES[1:], _OF_BLOCKS, torch.float16),
    Narrow("fp8-e4m3", "weights are rounded to FP8 (e4m3)", _SHARES[1:], _OF_BLOCKS, torch.float8_e4m3fn),
    Narrow("fp8-e5m2", "weights are rounded to FP8 (e5m2)", _SHARES[1:], _OF_BLOCKS, torch.float8_e5m2),
    RoundedActivations("activations", "activations are rounded to few bits", _BITS[:-1], "{:g} bits"),
)


@dataclass(frozen=True)
class _InStructure(Fault):
    kind: ClassVar[Kind] = "structure"


class SkippedBlocks(_InStructure):
    def plant(self, broken: Broken, level: float) -> None:
        count = math.ceil(level * len(broken.blocks))
        broken.first = (len(broken.blocks) - count) // 2
        for block in broken.blocks[broken.first : broken.first + count]:
            block.register_forward_hook(_skip, with_kwargs=True)


def _skip(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
    states = given[0] if given else named["hidden_states"]
    return states if isinstance(output, Tensor) else (states, *output[1:])


@dataclass(frozen=True)
class WrongHeads(_InStructure):
    """The first two heads of the attention are swapped, or the first is read twice: in what reads their output."""

    repeated: bool = False

    def plant(self, broken: Broken, level: float) -> None:
        for block in broken.last(level):
            name, layer = next(((name, layer) for name, layer in matrices(block) if kind_of(name) == "o"), ("", None))
            if layer is None:
                raise NotPlanted("its blocks have no attention with an output layer of a known name")
            attention, width = block.get_submodule(name.rpartition(".")[0]), layer.weight.shape[1 - output_axis(layer)]
            size = getattr(attention, "v_head_dim", None) or getattr(attention, "head_dim", None)
            if not isinstance(size, int) or width % size or width < 2 * size:
                raise NotPlanted("it does not say how wide a head of its attention is, or has one head")
            weight, axis = layer.weight.clone(), 1 - output_axis(layer)
            one, two = (layer.weight.narrow(axis, at, size) for at in (0, size))
            weight.narrow(axis, 0, size).copy_(one + two if self.repeated else two)
            weight.narrow(axis, size, size).copy_(torch.zeros_like(one) if self.repeated else one)
            broken.put(layer.weight, weight)


@dataclass(frozen=True)
class Rope(_InStructure):
    """Rotary frequencies have a smaller base, as where it is read as an older model's, or all are scaled."""

    scaled: bool = False

    def plant(self, broken: Broken, level: float) -> None:
        held = [
            (module, name, buffer)
            for module in broken.model.modules()
            for name, buffer in module.named_buffers(recurse=False)
            if name.endswith("inv_freq")
        ]
        if not held:
            raise NotPlanted("it keeps no rotary frequencies")
        for module, name, frequencies in held:
            at = torch.arange(len(frequencies), device=frequencies.device) / len(frequencies)
            setattr(module, name, frequencies / level if self.scaled else frequencies * level**at)


class OffPositions(_InStructure):
    """Positions are too high from a token on, as where a prompt is read in two parts."""

    def plant(self, broken: Broken, level: float) -> None:
        def moved(ids: Any) -> Any:
            if not isinstance(ids, Tensor) or ids.is_floating_point():
                return ids
            return ids + int(level) * (ids >= _BEGIN)

        def off(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
            return tuple(map(moved, given)), {key: moved(value) for key, value in named.items()}

        held = [
            (module, type(module) is nn.Embedding)
            for name, module in broken.model.named_modules()
            if (last := name.rpartition(".")[2]).startswith("rotary_emb")
            or (type(module) is nn.Embedding and last in ("wpe", "embed_positions"))
        ]
        if not held:
            raise NotPlanted("it has no module of positions that is known")
        for module, is_table in held:
            module.register_forward_pre_hook(off, with_kwargs=True)
            if is_table:  # the last position has none behind it
                most = module.num_embeddings - 1
                module.register_forward_pre_hook(lambda _, given, most=most: (given[0].clamp(max=most),))


@dataclass(frozen=True)
class Number(_InStructure):
    """A number of the configuration, which modules may hold too, is multiplied; or, as a power, moves to 1."""

    of: tuple[str, ...] = ()
    what: str = ""
    is_power: bool = False

    def plant(self, broken: Broken, level: float) -> None:
        held = [found for found in broken.holders(*self.of) if found[2] != 1]
        if not held:
            raise NotPlanted(f"it has no {self.what}")
        for holder, name, value in held:
            changed = value ** (1 - level) if self.is_power else value * level
            setattr(holder, name, max(1, int(changed)) if isinstance(value, int) else changed)


_FACTORS = (1.01, 1.05, 1.25, 2, 5, 10, 100)
_LONGER = (1.25, 2, 4, 1000)
_WINDOW = ("sliding_window", "attention_window_size"), "window of attention"
_CAP = ("final_logit_softcapping", "attn_logit_softcapping", "logits_soft_cap"), "soft cap of logits"
_SCALE = ("logit_scale", "logits_scaling"), "scale of logits"
STRUCTURE: tuple[Fault, ...] = (
    SkippedBlocks("skip", "blocks in the middle are skipped", _SHARES, _OF_BLOCKS),
    WrongHeads("heads-swapped", "two heads are swapped", _SHARES, _OF_BLOCKS),
    WrongHeads("heads-repeated", "a head is read twice", _SHARES, _OF_BLOCKS, repeated=True),
    Rope("rope-base", "the base of the rotary positions is too small", _FACTORS, "1/{:g} of the base"),
    Rope("rope-scaling", "rotary positions are scaled", _FACTORS[:-1], "by 1/{:g}", scaled=True),
    OffPositions("position", f"positions are too high from token {_BEGIN} on", (1, 2, 4, 8, 16), "by {:g}"),
    Number("window", "the window of attention is too short", (0.75, *_SHARES[-2::-1]), "{:g} of it", *_WINDOW),
    Number("no-window", "the window of attention is ignored", _LONGER, "{:g} times as long", *_WINDOW),
    Number("softcap", "the soft cap of logits is lost", _LONGER, "{:g} times as high", *_CAP),
    Number("logit-scale", "the scale of logits is lost", _SHARES[1:], "{:.0%} of it", *_SCALE, is_power=True),
)


@dataclass(frozen=True)
class _InTexts(Fault):
    kind: ClassVar[Kind] = "texts"


@dataclass(frozen=True)
class Bos(_InTexts):
    """The special token in front of texts is missing, or there twice."""

    doubled: bool = False

    def plant(self, broken: Broken, level: float) -> None:
        facts = broken.tokenizer
        if not facts.adds_bos:
            raise NotPlanted("its tokenizer puts no token in front of a text")

        def encode(text: str, special: bool) -> Sequence[int]:
            ids = list(facts.encode(text, special))
            if ids[:1] != [facts.bos]:
                return ids
            return [*ids[:1], *ids] if self.doubled else ids[1:]

        broken.tokenizer = replace(facts, encode=encode, adds_bos=self.doubled, placed=lambda _, __: None)


class CutPrompts(_InTexts):
    def plant(self, broken: Broken, level: float) -> None:
        broken.prompt = lambda prompt: replace(prompt, ids=prompt.ids[min(int(level), len(prompt.ids) - 1) :])


class LostEnd(_InTexts):
    def plant(self, broken: Broken, level: float) -> None:
        config = getattr(broken.model, "generation_config", None)
        if config is None or (config.eos_token_id, broken.loaded.tokenizer.eos_token_id) == (None, None):
            raise NotPlanted("no token ends its texts")
        config.eos_token_id = None
        broken.loaded = replace(broken.loaded, tokenizer=_Endless(broken.loaded.tokenizer))


class _Endless:
    """A tokenizer without an end token."""

    eos_token_id = None

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._tokenizer(*given, **named)


class Temperature(_InTexts):
    def plant(self, broken: Broken, level: float) -> None:
        broken.settings = lambda settings: structs.replace(
            settings, temperature=level, num_beams=1, seed=_SEED if settings.seed is None else settings.seed
        )


class OtherTemplate(_InTexts):
    def plant(self, broken: Broken, level: float) -> None:
        if broken.tokenizer.chat is None:
            raise NotPlanted("its tokenizer has no chat template")
        if "[INST]" in str(getattr(broken.loaded.tokenizer, "chat_template", "")):
            raise NotPlanted("its chat template is the one that would be put in its place")
        broken.tokenizer = replace(broken.tokenizer, chat=_as_llama)


def _as_llama(messages: Sequence[Mapping[str, str]], **_: Any) -> str:
    turns = {"assistant": "{}", "system": "<<SYS>>\n{}\n<</SYS>>\n\n"}
    return "".join(turns.get(message["role"], "[INST] {} [/INST]").format(message["content"]) for message in messages)


class ShiftedAnswers(_InTexts):
    kind: ClassVar[Kind] = "data"

    def plant(self, broken: Broken, level: float) -> None:
        """Leave the model as it is: the dataset is broken."""

    def rows(self, rows: DatasetRows, level: float) -> DatasetRows:
        spec, count = rows.spec, math.ceil(level * len(rows.rows))
        references = [spec.references] if isinstance(spec.references, str) else spec.references or []
        names = {spec.answer, spec.target, *references}
        columns = [name for name in rows.rows[0] if name in names]
        moved = rows.rows[-count:]
        answered = [
            {**row, **{name: before[name] for name in columns}}
            for row, before in zip(moved, (moved[-1], *moved), strict=False)
        ]
        return replace(rows, rows=(*rows.rows[:-count], *answered))


_ONCE = (1.0,), "always"
TEXTS: tuple[Fault, ...] = (
    Bos("bos-missing", "texts begin without their first special token", *_ONCE),
    Bos("bos-doubled", "texts begin with their first special token twice", *_ONCE, doubled=True),
    CutPrompts("prompt-cut", "prompts lose their beginning", (1, 4, 16, 64, 256), "{:g} tokens"),
    LostEnd("end-token", "the end token does not end a text", *_ONCE),
    Temperature("temperature", "texts are sampled with a temperature", (0.3, 0.6, 1.0, 1.5), "{:g}"),
    OtherTemplate("template", "chats have the template of another model", *_ONCE),
    ShiftedAnswers("answers", "answers are those of the row before", (1 / 32, *_SHARES), "{:.0%} of the rows"),
)


def known_faults() -> dict[str, Fault]:
    """Return all faults by name: those of this package, and those that installed packages register.

    An entry point of the group ``pytest_lmgate.faults`` is a `Fault`, or returns one when it is called.
    """
    faults = {fault.name: fault for fault in (*WEIGHTS, *STRUCTURE, *TEXTS)}
    for entry in entry_points(group=_GROUP):
        loaded = entry.load()
        fault = loaded if isinstance(loaded, Fault) else loaded()
        if not isinstance(fault, Fault) or fault.name in faults:
            raise ConfigError(
                f"entry point {entry.name} of {_GROUP}: expected a Fault with a name of its own, got {fault!r:.80}"
            )
        faults[fault.name] = fault
    return faults


def chosen_faults(names: str | None) -> list[Fault]:
    """Return the faults with these names, written with commas between; a name may be a kind, and none means all."""
    faults = known_faults()
    if names is None:
        return list(faults.values())
    chosen: dict[str, Fault] = {}
    kinds = {fault.kind for fault in faults.values()}
    for name in map(str.strip, names.split(",")):
        matching = {key: fault for key, fault in faults.items() if name in (key, fault.kind)}
        if not matching:
            hint = nearest(name, [*faults, *kinds])
            raise ConfigError(f"--faults: no fault is called {name!r}{hint}; there are {', '.join(faults)}")
        chosen |= matching
    return list(chosen.values())
