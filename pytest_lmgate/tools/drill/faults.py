"""The faults: of weights and their arithmetic, of structure, of texts, of the cache and of data; and their table."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from pytest_lmgate.data.columns import columns_of
from pytest_lmgate.engines.transformers.beginnings import NO_CACHE, past_of
from pytest_lmgate.engines.transformers.head import inputs_of
from pytest_lmgate.errors import ConfigError, nearest
from pytest_lmgate.measure.rows import DatasetRows
from pytest_lmgate.tools.drill.in_transformers import InTransformers
from pytest_lmgate.tools.drill.planting import SEED, Broken, Change, Fault, Kind, NotPlanted, Weight, rounded
from pytest_lmgate.tools.parts.blocks import output_axis

T = TypeVar("T")
_GROUP = "pytest_lmgate.faults"  # of entry points
_TRIED_TOKENS = 4  # of the trial of the cache
_BEGIN = 16  # token from which positions are off: where a second part of a prompt could begin


def _round_block(broken: Broken, level: float, *, at: float | None) -> None:
    """Round a block: 0 is the first, 1 the last, None the most sensitive."""
    broken.first = _modules(broken).most_sensitive if at is None else int(at * (broken.size - 1) + 0.5)
    for matrix in broken.matrices(broken.first):
        matrix.change(partial(rounded, bits=level))


def _modules(broken: Broken) -> InTransformers:
    """Return a model of transformers; NotPlanted if it is another."""
    if not isinstance(broken, InTransformers):
        raise NotPlanted(broken.out_of_reach)
    return broken


def _needed(found: list[T], lacking: str) -> list[T]:
    if not found:
        raise NotPlanted(lacking)
    return found


def _add_noise(broken: Broken, level: float) -> None:
    for block in range(broken.size):
        for matrix in broken.matrices(block):
            matrix.change(partial(_noisy, level=level, seed=zlib.crc32(f"{block}.{matrix.name}".encode())))


def _noisy(weight: Tensor, level: float, seed: int) -> Tensor:
    generator = torch.Generator(weight.device).manual_seed(seed)
    drawn = torch.randn(weight.shape, generator=generator, device=weight.device)
    return weight.float() + level * weight.float().std() * drawn


def _rows(weight: Tensor, level: float, others: Tensor) -> Tensor:
    """Return a matrix with a share of its first rows, one at least, of another matrix."""
    rows = math.ceil(level * len(weight))
    return torch.cat([others[:rows], weight[rows:]])


def _double_scale(broken: Broken, level: float) -> None:
    matrices = broken.matrices(broken.middle())
    found = next((matrix for matrix in matrices if matrix.part == "down"), matrices[-1])
    found.change(lambda weight: _rows(weight, level, 2 * weight))


def _take_other_layer(broken: Broken, level: float) -> None:
    block = broken.middle()
    if block == 0:
        raise NotPlanted("it has one block only")
    largest = max(broken.matrices(block), key=lambda matrix: matrix.read().numel())
    theirs = next((matrix for matrix in broken.matrices(block - 1) if matrix.name == largest.name), None)
    if theirs is None or theirs.read().shape != largest.read().shape:
        raise NotPlanted("the block before has no tensor of this name and shape")
    largest.change(lambda weight: _rows(weight, level, theirs.read()))


def _change_all(changes: Sequence[tuple[Weight, Change]], lacking: str) -> None:
    """Change tensors; NotPlanted if that changes none of them."""
    if all(torch.equal(change(weight.read()), weight.read()) for weight, change in changes):
        raise NotPlanted(lacking)
    for weight, change in changes:
        weight.change(change)


def _lose_vectors(broken: Broken, level: float, *, what: Literal["bias", "norm"]) -> None:
    """Have biases, or weights of norms, be those of a new model."""
    lost = [found for block in broken.last(level) for found in broken.vectors(block, what)]
    changes = [(weight, partial(torch.full_like, fill_value=value)) for weight, value in lost]
    _change_all(changes, f"its blocks have no {what} with a value of its own")


def _lose_adapter(broken: Broken, level: float) -> None:
    layers = [module for module in broken.model.modules() if hasattr(module, "lora_A") and module.scaling]
    for layer in _needed(layers, "it has no LoRA adapter"):
        layer.scaling = {name: scale * (1 - level) for name, scale in layer.scaling.items()}


def _untie_head(broken: Broken, level: float) -> None:
    """Have rows of the head be those of a new model, as where it was not tied to the embeddings that it shares."""
    head, weight = broken.model.get_output_embeddings(), broken.model.get_input_embeddings().weight
    if head is None or head.weight is not weight:
        raise NotPlanted("its head has weights of its own")
    broken.first, rows, new = broken.size, math.ceil(level * len(weight)), weight.detach().clone()
    new[:rows].normal_(0, float(weight.std()), generator=torch.Generator(weight.device).manual_seed(SEED))
    head.weight = nn.Parameter(new, requires_grad=False)


def _narrow(broken: Broken, level: float, *, dtype: torch.dtype) -> None:
    """Round weights to a narrower type; of 8 bits, with one scale for each tensor."""

    def narrowed(weight: Tensor) -> Tensor:
        scale = torch.ones((), device=weight.device)
        if dtype.itemsize == 1:
            scale = weight.float().abs().max() / torch.finfo(dtype).max
        narrow = (weight.float() / scale).to(dtype).float() * scale if scale > 0 else weight.float()
        return narrow.to(weight.dtype)

    changes = [(matrix, narrowed) for block in broken.last(level) for matrix in broken.matrices(block)]
    _change_all(changes, f"its weights have no more digits than {str(dtype).removeprefix('torch.')}")


def _round_activations(broken: Broken, level: float) -> None:
    for layer in _linear(broken):
        layer.register_forward_pre_hook(lambda _, given: (rounded(given[0], level), *given[1:]))


def _linear(broken: Broken) -> list[Any]:
    made = _modules(broken)
    return [layer for block in made.blocks for _, layer in made.layers(block)]


def _round_sums(broken: Broken, level: float) -> None:
    """Add products in float32, so many at a time, to a sum in bfloat16."""

    def summed(layer: Any, given: tuple[Tensor, ...], _: Tensor) -> Tensor:
        weight, states = layer.weight if output_axis(layer) == 0 else layer.weight.T, given[0].float()
        total = torch.zeros((), dtype=torch.bfloat16, device=weight.device)
        for begin in range(0, weight.shape[1], int(level)):
            part = slice(begin, begin + int(level))
            total = (total.float() + states[..., part] @ weight[:, part].float().T).bfloat16()
        return (total if layer.bias is None else total + layer.bias).to(given[0].dtype)

    for layer in _linear(broken):
        layer.register_forward_hook(summed)


def _skip_blocks(broken: Broken, level: float) -> None:
    blocks, count = _modules(broken).blocks, math.ceil(level * broken.size)
    broken.first = (broken.size - count) // 2
    for block in blocks[broken.first : broken.first + count]:
        block.register_forward_hook(_skip, with_kwargs=True)


def _skip(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
    states = given[0] if given else named["hidden_states"]
    return states if isinstance(output, Tensor) else (states, *output[1:])


def _mix_heads(broken: Broken, level: float, *, repeated: bool) -> None:
    """Swap the first two heads of the attention, or read the first twice: in what reads their output."""

    def mixed(weight: Tensor, size: int) -> Tensor:
        one, two, others = weight.split([size, size, weight.shape[1] - 2 * size], 1)
        return torch.cat([one + two, torch.zeros_like(one), others] if repeated else [two, one, others], 1)

    blocks = _modules(broken).blocks
    for block in broken.last(level):
        matrix = next((matrix for matrix in broken.matrices(block) if matrix.part == "o"), None)
        if matrix is None:
            raise NotPlanted("its blocks have no attention with an output layer of a known name")
        attention, width = blocks[block].get_submodule(matrix.name.rpartition(".")[0]), matrix.read().shape[1]
        size = getattr(attention, "v_head_dim", None) or getattr(attention, "head_dim", None)
        if not isinstance(size, int) or width % size or width < 2 * size:
            raise NotPlanted("it does not say how wide a head of its attention is, or has one head")
        matrix.change(partial(mixed, size=size))


def _change_rope(broken: Broken, level: float, *, is_base: bool) -> None:
    """Divide the base of rotary frequencies, or scale them all."""
    held = [
        (module, name, rates)
        for module in broken.model.modules()
        for name, rates in module.named_buffers(recurse=False)
        if name.endswith("inv_freq")
    ]
    for module, name, rates in _needed(held, "it keeps no rotary frequencies"):
        parts = torch.arange(len(rates), device=rates.device) / len(rates)
        setattr(module, name, rates * level**parts if is_base else rates / level)


def _move_positions(broken: Broken, level: float) -> None:
    """Have positions too high from a token on, as where a prompt is read in two parts."""

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
    for module, is_table in _needed(held, "it has no module of positions that is known"):
        module.register_forward_pre_hook(off, with_kwargs=True)
        if is_table:  # the last position has none behind it
            most = module.num_embeddings - 1
            module.register_forward_pre_hook(lambda _, given, most=most: (given[0].clamp(max=most),))


def _change_number(broken: Broken, level: float, *, what: tuple[str, ...], is_power: bool = False) -> None:
    """Multiply a number of the configuration, which modules may hold too; or, as a power, move it to 1."""
    words, *names = what
    held = [found for found in broken.holders(*names) if found[2] != 1]
    for holder, name, value in _needed(held, f"it has no {words}"):
        changed = value ** (1 - level) if is_power else value * level
        setattr(holder, name, max(1, int(changed)) if isinstance(value, int) else changed)


def _begin(broken: Broken, _: float, *, doubled: bool) -> None:
    if not broken.tokenizer.adds_bos:
        raise NotPlanted("its tokenizer puts no token in front of a text")
    broken.begin(lambda ids: [ids[0], *ids] if doubled else ids[1:])


def _cut_prompts(broken: Broken, level: float) -> None:
    broken.cut = int(level)


def _decode(broken: Broken, level: float, *, what: tuple[str, ...]) -> None:
    broken.decode(**dict.fromkeys(what, level))


def _write_chats_as_llama(broken: Broken, _: float) -> None:
    chat = broken.tokenizer.chat
    if chat is not None and "[INST]" in chat([{"role": "user", "content": "a"}]):
        raise NotPlanted("its chat template is the one that would be put in its place")
    broken.write_chats(_as_llama)


def _as_llama(messages: Sequence[Mapping[str, str]], **_: Any) -> str:
    turns = {"assistant": "{}", "system": "<<SYS>>\n{}\n<</SYS>>\n\n"}
    return "".join(turns.get(message["role"], "[INST] {} [/INST]").format(message["content"]) for message in messages)


# Faults of the cache: it is damaged when the model begins to read a token that it wrote. It reads the prompt as it
# should, and goes on from a damaged cache. So only gates that write see it, and `self_kl`, which reads again what was
# written.


def _round_cache(broken: Broken, level: float) -> None:
    def coarse(numbers: Tensor, new: int, *_: Any) -> Tensor:
        return torch.cat([numbers[..., :-new, :], rounded(numbers[..., -new:, :], level)], -2)

    _spoil(broken, coarse)


def _lose_last(broken: Broken, level: float) -> None:
    """Have zeros where the last tokens of the prompt were."""
    _spoil_rows(broken, lambda row, *_: row[:, -int(level) :].zero_())


def _keep_stale(broken: Broken, level: float) -> None:
    """Have the tokens before, in the place of the last tokens of the prompt."""

    def stale(row: Tensor, begin: int, *_: Any) -> None:
        tokens = row.shape[1]
        count = min(int(level), (tokens - max(0, begin)) // 2)
        row[:, tokens - count :] = row[:, tokens - 2 * count : tokens - count].clone()

    _spoil_rows(broken, stale)


def _take_other(broken: Broken, level: float) -> None:
    """Have the beginning of the longest prompt, in the place of each prompt's own."""
    other = functools.cache(lambda: _read(broken, broken.prompts[0].ids[: int(level)]).layers)

    def exchanged(row: Tensor, begin: int, layer: int, what: str) -> None:
        theirs, first = getattr(other()[layer], what)[0], max(0, begin)  # a window has lost what is in front of it
        place = row[:, first : max(first, begin + theirs.shape[1])]
        place.copy_(theirs[:, first - begin :][:, : place.shape[1]])

    _spoil_rows(broken, exchanged)


def _spoil_rows(broken: Broken, change: Callable[[Tensor, int, int, str], object]) -> None:
    """Change the cache before the first token behind the prompt: of each row, shape ``[heads, tokens, numbers]``."""

    def spoilt(numbers: Tensor, new: int, begins: Sequence[int], layer: int, what: str) -> Tensor:
        if new == numbers.shape[-2]:  # later, one token is new
            numbers = numbers.clone()
            for row, begin in zip(numbers, begins, strict=True):
                change(row, begin, layer, what)
        return numbers

    _spoil(broken, spoilt)


def _spoil(broken: Broken, damage: Callable[[Tensor, int, Sequence[int], int, str], Tensor]) -> None:
    """Damage the cache before each token behind the prompt.

    `damage` takes keys or values, shape ``[rows, heads, tokens, numbers]``, and how many tokens are new since the last
    time; the place of each row's first token, negative if a window of attention has lost it; the number of the layer,
    and whether it is its ``keys`` or ``values``.
    """

    def spoil(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        cache, mask = named.get("past_key_values"), named.get("attention_mask")
        read = next(each for each in (*given, *named.values()) if isinstance(each, Tensor))
        # Likelihoods may be read behind a beginning that requests share, which is no cache of the model's own.
        if not broken.writes or cache is None or read.shape[1] != 1 or not (length := cache.get_seq_length()):
            return
        new, cache.damaged = length - getattr(cache, "damaged", 0), length
        pads = [0] * len(read)
        if isinstance(mask, Tensor) and mask.ndim == 2:
            pads = mask.eq(0).sum(1).tolist()
        for number, layer in enumerate(cache.layers):
            for what in ("keys", "values"):
                numbers = getattr(layer, what)
                places = [pad - length + numbers.shape[-2] for pad in pads]
                setattr(layer, what, damage(numbers, min(new, numbers.shape[-2]), places, number, what))

    try:
        past_of(_read(broken, range(_TRIED_TOKENS)), _TRIED_TOKENS)
    except NO_CACHE as error:
        raise NotPlanted("its cache is not keys and values of all tokens") from error
    decoder = broken.model.get_submodule(_modules(broken).path.rpartition(".")[0])  # runs the blocks
    decoder.register_forward_pre_hook(spoil, with_kwargs=True)


def _read(broken: Broken, ids: Any) -> Any:
    """Return the cache after a row of token ids."""
    cache, model = DynamicCache(), broken.model
    model(**inputs_of(model, torch.as_tensor(ids, device=model.device)[None], cache))
    return cache


def _shift_answers(rows: DatasetRows, level: float) -> DatasetRows:
    spec, count = rows.spec, math.ceil(level * len(rows.rows))
    references = [spec.references] if isinstance(spec.references, str) else spec.references or []
    names = {spec.answer, spec.target, *references}
    columns = [name for name in rows.rows[0] if name in names]
    _needed(columns, "its dataset has no column of answers")
    moved = rows.rows[-count:]
    answered = [
        {**row, **{name: before[name] for name in columns}}
        for row, before in zip(moved, (moved[-1], *moved), strict=False)
    ]
    return replace(rows, rows=(*rows.rows[:-count], *answered))


def _drop_subject(rows: DatasetRows, _: float) -> DatasetRows:
    """Leave out the rows of the first row's subject."""
    column = next(filter(None, (rows.spec.average_by, *columns_of(rows.spec.tags), rows.spec.cluster)), None)
    if column is None:
        raise NotPlanted("its dataset has no subjects: no average_by, tags or cluster")
    kept = [at for at, row in enumerate(rows.rows) if row[column] != rows.rows[0][column]]
    _needed(kept, "its dataset has one subject only")
    tags = {name: tuple(tags[at] for at in kept) for name, tags in rows.tags.items()}
    return replace(rows, rows=tuple(rows.rows[at] for at in kept), tags=tags)


def _show_answers(rows: DatasetRows, _: float) -> DatasetRows:
    """Have as many examples, which are rows of the dataset itself."""
    if not rows.examples:
        raise NotPlanted("its dataset has no examples")
    return replace(rows, examples=rows.rows[: len(rows.examples)])


_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
_ROWS, _OF_ROWS = (1 / 64, *_SHARES), "{:.0%} of its rows"
_OF_BLOCKS = "{:.0%} of the blocks"
_NOISE = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
_TYPES = {
    "bfloat16": (torch.bfloat16, "bfloat16"),
    "float16": (torch.float16, "float16"),
    "fp8-e4m3": (torch.float8_e4m3fn, "FP8 (e4m3)"),
    "fp8-e5m2": (torch.float8_e5m2, "FP8 (e5m2)"),
}
_BITS, _IN_BITS = (8, 7, 6, 5, 4, 3, 2), "{:g} bits"
_FACTORS = (1.01, 1.05, 1.25, 2, 5, 10, 100)
_LONGER = (1.25, 2, 4, 1000)
_TOKENS, _IN_TOKENS = (1, 4, 16, 64, 256), "{:g} tokens"
_ONCE: tuple[tuple[float, ...], str] = (1,), "always"
_WINDOW = partial(_change_number, what=("window of attention", "sliding_window", "attention_window_size"))
_CAPS = "soft cap of logits", "final_logit_softcapping", "attn_logit_softcapping", "logits_soft_cap"
_CAP = partial(_change_number, what=_CAPS)
_SCALE = partial(_change_number, what=("scale of logits", "logit_scale", "logits_scaling"), is_power=True)
_DIVIDE_ROPE, _SCALE_ROPE = (partial(_change_rope, is_base=is_base) for is_base in (True, False))
_END, _SAMPLE = (partial(_decode, what=(name,)) for name in ("ignore_eos", "temperature"))
_PENALIZE = partial(_decode, what=("repetition_penalty", "repeat_penalty"))  # by vLLM's name, and by llama.cpp's
_Row = tuple[str, str, Sequence[float], str, Any]  # last what breaks a model; of the kind data, what breaks a dataset
_BY_KIND: dict[Kind, list[_Row]] = {
    "weights": [
        ("round-first", "the first block is rounded", _BITS, _IN_BITS, partial(_round_block, at=0)),
        ("round-middle", "the middle block is rounded", _BITS, _IN_BITS, partial(_round_block, at=0.5)),
        ("round-last", "the last block is rounded", _BITS, _IN_BITS, partial(_round_block, at=1)),
        ("round-sensitive", "the most sensitive block is rounded", _BITS, _IN_BITS, partial(_round_block, at=None)),
        ("noise", "weights of all blocks have noise", _NOISE, "{:.0%} of their spread", _add_noise),
        ("scale", "a scale of the middle block is doubled", _ROWS, _OF_ROWS, _double_scale),
        ("wrong-layer", "a tensor is the one of the block before", _ROWS, _OF_ROWS, _take_other_layer),
        ("bias", "biases are not loaded", _SHARES, _OF_BLOCKS, partial(_lose_vectors, what="bias")),
        ("norm", "weights of norms are not loaded", _SHARES, _OF_BLOCKS, partial(_lose_vectors, what="norm")),
        ("base", "a LoRA adapter is not applied", _SHARES[1:], "{:.0%} of it", _lose_adapter),
    ],
    "arithmetic": [
        *(
            (name, f"weights are rounded to {words}", _SHARES[1:], _OF_BLOCKS, partial(_narrow, dtype=dtype))
            for name, (dtype, words) in _TYPES.items()
        ),
        ("activations", "activations are rounded", _BITS[:-1], _IN_BITS, _round_activations),
        ("sums", "sums are kept in bfloat16", (1024, 256, 64), "{:g} products at a time", _round_sums),
    ],
    "structure": [
        ("skip", "blocks in the middle are skipped", _SHARES, _OF_BLOCKS, _skip_blocks),
        ("heads-swapped", "two heads are swapped", _SHARES, _OF_BLOCKS, partial(_mix_heads, repeated=False)),
        ("heads-repeated", "a head is read twice", _SHARES, _OF_BLOCKS, partial(_mix_heads, repeated=True)),
        ("rope-base", "the base of rotary positions is too small", _FACTORS, "1/{:g} of it", _DIVIDE_ROPE),
        ("rope-scaling", "rotary positions are scaled", _FACTORS[:-1], "by 1/{:g}", _SCALE_ROPE),
        ("position", f"positions are too high from token {_BEGIN} on", (1, 2, 4, 8, 16), "by {:g}", _move_positions),
        ("window", "the window of attention is too short", (0.75, *_SHARES[-2::-1]), "{:g} of it", _WINDOW),
        ("no-window", "the window of attention is ignored", _LONGER, "{:g} times as long", _WINDOW),
        ("softcap", "the soft cap of logits is lost", _LONGER, "{:g} times as high", _CAP),
        ("logit-scale", "the scale of logits is lost", _SHARES[1:], "{:.0%} of it", _SCALE),
        ("untied", "the head is not tied to the embeddings", _ROWS, _OF_ROWS, _untie_head),
    ],
    "cache": [
        ("kv-bits", "cached keys and values are rounded", _BITS, _IN_BITS, _round_cache),
        ("kv-lost", "the cache loses the end of the prompt", _TOKENS, _IN_TOKENS, _lose_last),
        ("kv-stale", "the cache has the tokens before in place of the last", _TOKENS, _IN_TOKENS, _keep_stale),
        ("kv-other", "the cache has the beginning of another row", _TOKENS, _IN_TOKENS, _take_other),
    ],
    "texts": [
        ("bos-missing", "texts begin without their first special token", *_ONCE, partial(_begin, doubled=False)),
        ("bos-doubled", "texts begin with their first special token twice", *_ONCE, partial(_begin, doubled=True)),
        ("prompt-cut", "prompts lose their beginning", _TOKENS, _IN_TOKENS, _cut_prompts),
        ("end-token", "the end token does not end a text", *_ONCE, _END),
        ("temperature", "texts are sampled with a temperature", (0.3, 0.6, 1, 1.5), "{:g}", _SAMPLE),
        ("penalty", "repetitions are penalized", (1.02, 1.05, 1.1, 1.3, 2), "{:g}", _PENALIZE),
        ("template", "chats have the template of another model", *_ONCE, _write_chats_as_llama),
        ("words", "digits and signs are words of their own", *_ONCE, lambda broken, _: _modules(broken).split_finely()),
    ],
    "data": [
        ("answers", "answers are those of the row before", (1 / 32, *_SHARES), "{:.0%} of the rows", _shift_answers),
        ("subject", "the rows of a subject are missing", *_ONCE, _drop_subject),
        ("examples", "the examples are rows of the test", *_ONCE, _show_answers),
    ],
}
_WHILE_WRITING = ("prompt-cut", "end-token", "temperature", "penalty", *(name for name, *_ in _BY_KIND["cache"]))
_SEEN_BY: dict[str, Any] = {"template": "chats", **dict.fromkeys(_WHILE_WRITING, "texts")}


def _fault(kind: Kind, name: str, sentence: str, levels: Sequence[float], words: str, change: Any) -> Fault:
    plant, rows = (None, change) if kind == "data" else (change, None)
    return Fault(name, sentence, tuple(levels), words, plant, kind, rows, _SEEN_BY.get(name, "all"))


FAULTS = tuple(_fault(kind, *row) for kind, rows in _BY_KIND.items() for row in rows)


def known_faults() -> dict[str, Fault]:
    """Return all faults by name: those of this package, and those that installed packages register.

    An entry point of the group ``pytest_lmgate.faults`` is a `Fault`, or returns one when it is called.
    """
    faults = {fault.name: fault for fault in FAULTS}
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
