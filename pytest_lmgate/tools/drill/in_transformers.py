"""A model of transformers that a fault may break: a copy that shares its tensors."""

from __future__ import annotations

import copy
import json
import weakref
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
import transformers
from torch import Tensor, nn

from pytest_lmgate.engines.tokenizers import tokenizer_facts
from pytest_lmgate.engines.transformers.head import inputs_of
from pytest_lmgate.engines.transformers.runner import TransformersRunner
from pytest_lmgate.tools.drill.planting import Broken, Change, NotPlanted, Weight, rounded
from pytest_lmgate.tools.parts import blocks
from pytest_lmgate.tools.parts.blocks import BlockMemory, BlockModel, copied
from pytest_lmgate.windows.tokens import TokenizerFacts

_TRIED_TOKENS, _TRIED_BITS = 32, 4
# What broken tensors may take: a share of the model's bytes, and so many at least. Hidden states at one place: half.
_SPARE, _LEAST_SPARE = 0.1, 2**26
_sensitive: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # block of a model


class InTransformers(Broken):
    """A copy of a model, whose modules and configuration are its own."""

    def __init__(self, healthy: BlockModel, tokenizer: TokenizerFacts, context: int | None = None) -> None:
        super().__init__(tokenizer)
        self.healthy, self.context, self.path, self.loaded = healthy, context, healthy.path, copied(healthy.loaded)
        self.blocks: list[Any] = BlockModel(self.loaded, self.path).blocks
        self._spare = max(_SPARE * sum(each.nbytes for each in self.model.parameters()), _LEAST_SPARE)
        self._room = self._spare

    @property
    def model(self) -> Any:
        return self.loaded.model

    @property
    def size(self) -> int:
        return len(self.blocks)

    @staticmethod
    def layers(block: nn.Module) -> list[tuple[str, Any]]:
        """Return the linear layers of a block by name; NotPlanted if their weights are not plain floats."""
        layers = blocks.linear_layers(block)
        if not layers:
            raise NotPlanted("its blocks have no linear layers")
        if any(type(each.weight) is not nn.Parameter or not each.weight.is_floating_point() for _, each in layers):
            raise NotPlanted("its weights are stored in a quantized form")
        return layers

    def matrices(self, block: int) -> list[Weight]:
        return [
            self._weight(name, each.weight, turned=blocks.output_axis(each) == 1)
            for name, each in self.layers(self.blocks[block])
        ]

    def vectors(self, block: int, what: Literal["bias", "norm"]) -> list[tuple[Weight, float]]:
        found = []
        for name, module in self.blocks[block].named_modules():
            attribute, kind = ("weight", type(module).__name__) if what == "norm" else ("bias", "")
            held = getattr(module, attribute, None)
            if isinstance(held, nn.Parameter) and held.ndim == 1 and ("Norm" in kind or not kind):
                value = float(what == "norm" and "Gemma" not in kind)  # Gemma's multiply by 1 + weight
                found.append((self._weight(name, held), value))
        return found

    def _weight(self, name: str, held: Tensor, *, turned: bool = False) -> Weight:
        def change(function: Change) -> None:
            self._change(held, (lambda weight: function(weight.T).T.contiguous()) if turned else function)

        return Weight(name, blocks.kind_of(name), lambda: held.T if turned else held, change)

    def _change(self, held: Tensor, function: Change) -> None:
        """Replace a tensor by a function of it, or where there is no room for more, only while its block runs."""
        self._room -= held.nbytes
        block, holders = None, blocks.holders(self.model, held)
        if self._room < 0:
            inside = {module for module, _ in holders}
            block = next((each for each in self.blocks if inside <= {*each.modules()}), None)
        if block is None:
            self.put(held, function(held))
            return

        def put(parameter: Any) -> None:
            for module, name in holders:
                setattr(module, name, parameter)

        block.register_forward_pre_hook(
            lambda *_: put(nn.Parameter(function(held).to(held.dtype), requires_grad=False))
        )
        block.register_forward_hook(lambda *_: put(held), always_call=True)

    @property
    def most_sensitive(self) -> int:
        """The block whose rounding to 4 bits moves the distributions of a few tokens most."""
        whole = self.healthy.loaded
        if whole.model not in _sensitive:
            size = whole.vocabulary_size or _TRIED_TOKENS
            ids = torch.arange(_TRIED_TOKENS, device=whole.device)[None] % size

            def moved(block: int) -> float:
                broken = InTransformers(self.healthy, self.tokenizer)
                for matrix in broken.matrices(block):
                    matrix.change(partial(rounded, bits=_TRIED_BITS))
                theirs = broken.model(**inputs_of(broken.model, ids)).logits.double().log_softmax(-1)
                return float((plain.exp() * (plain - theirs)).sum())

            plain = self.model(**inputs_of(self.model, ids)).logits.double().log_softmax(-1)
            _sensitive[whole.model] = max(range(self.size), key=moved)
        return _sensitive[whole.model]

    def replay(self, memory: BlockMemory, level: int) -> None:
        """Run the blocks in front of the block number `level` once for each batch."""
        memory.most_bytes = self._spare / 2
        blocks.put_replays({"": self.model}, BlockModel(self.loaded, self.path), level, memory)

    def decode(self, **fields: Any) -> None:
        config = getattr(self.model, "generation_config", None)
        if "ignore_eos" in fields:
            if config is None or (config.eos_token_id, self.loaded.tokenizer.eos_token_id) == (None, None):
                raise NotPlanted("no token ends its texts")
            tokenizer = copy.deepcopy(self.loaded.tokenizer)
            config.eos_token_id = tokenizer.eos_token = None
            self.loaded = replace(self.loaded, tokenizer=tokenizer)
        if (penalty := fields.get("repetition_penalty")) is not None:
            if not callable(getattr(self.model, "generate", None)):
                raise NotPlanted("it writes no texts")
            self.model.generate = partial(_penalized, self.model.generate, penalty)
        super().decode(**fields)

    def split_finely(self) -> None:
        """Replace the regular expression by which a byte-level tokenizer cuts texts into words."""
        tokenizer = copy.deepcopy(self.loaded.tokenizer)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None or "ByteLevel" not in str(backend.pre_tokenizer):
            raise NotPlanted("its tokenizer is not a byte-level one of the library tokenizers")
        words = {"type": "Split", "pattern": {"Regex": r" ?[^\W\d_]+|\d| ?[^\s\w]|_|\s+"}, "behavior": "Isolated"}
        to_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        both = {"type": "Sequence", "pretokenizers": [{**words, "invert": False}, to_bytes]}
        text = json.dumps({**json.loads(backend.to_str()), "pre_tokenizer": both})
        backend.pre_tokenizer = type(backend).from_str(text).pre_tokenizer
        self.loaded, self.tokenizer = replace(self.loaded, tokenizer=tokenizer), tokenizer_facts(tokenizer)

    def open(self) -> TransformersRunner:
        runner = TransformersRunner(self.loaded, self.context)
        runner.is_tried = True  # the model was
        self.speaking(runner)
        return runner


def _penalized(generate: Any, penalty: float, **options: Any) -> Any:
    """Generate texts in which the logits of tokens that were there before are divided by the penalty."""
    first = transformers.RepetitionPenaltyLogitsProcessor(penalty)
    others = options.pop("logits_processor", None) or []
    return generate(**options, logits_processor=transformers.LogitsProcessorList([first, *others]))
