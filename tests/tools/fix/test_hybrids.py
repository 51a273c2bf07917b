"""Hybrids of two models: which groups they have, and that remembered hidden states change no bit of a result."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

from pytest_lmgate.engines.base import Model
from pytest_lmgate.engines.transformers.runner import TransformersRunner
from pytest_lmgate.errors import ModelError
from pytest_lmgate.tools.fix.hybrids import By, Hybrids, Part
from pytest_lmgate.tools.parts.blocks import BlockMemory, Replay
from pytest_lmgate.windows.requests import Request, Requests
from tests.models import zoo


def pair(architecture: str, **config: Any) -> tuple[Any, Any]:
    """Return a model and a copy, each of whose parameters was moved a little."""
    reference = zoo.build(architecture, **config)
    candidate = copy.deepcopy(reference)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in candidate.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * parameter.abs().mean() * 0.1)
    return reference, candidate


def runner_of(model: Any) -> TransformersRunner:
    return TransformersRunner(zoo.loaded(model, zoo.word_tokenizer()), zoo.CONTEXT)


def hybrids(reference: Any, candidate: Any, *, by: By = "group") -> Hybrids:
    runners = runner_of(reference), runner_of(candidate)
    models = [Model(name=name, open=lambda: runners[0], content={"name": name}) for name in ("p", "q")]
    return Hybrids(*models, runners, by=by)


def paths_of(architecture: str, **config: Any) -> dict[str, tuple[str, ...]]:
    return {part.name: part.paths for part in hybrids(*pair(architecture, **config)).parts}


def test_the_linear_layers_of_a_llama_are_in_groups_and_its_norms_are_the_rest_of_their_block():
    found, block = paths_of("llama"), "model.layers.1"
    modules = {
        "qkv": tuple(f".self_attn.{each}_proj" for each in "qkv"), "o": (".self_attn.o_proj",),
        "up": (".mlp.gate_proj", ".mlp.up_proj"), "down": (".mlp.down_proj",), "rest": ("",),
    }  # fmt: skip
    for group, paths in modules.items():
        assert found[f"{block} {group}"] == tuple(f"{block}{path}" for path in paths)
    assert list(found)[-3:] == ["head", "embeddings", "rest outside of the blocks"]


def test_c_proj_of_gpt2_is_in_the_attention_and_in_the_mlp_and_embeddings_are_tied_to_the_head():
    found = paths_of("gpt2", tie_word_embeddings=True)
    assert found["transformer.h.0 o"] == ("transformer.h.0.attn.c_proj",)
    assert found["transformer.h.0 down"] == ("transformer.h.0.mlp.c_proj",)
    assert found["embeddings and head"] == ("transformer.wte", "transformer.wpe", "lm_head")


@pytest.mark.parametrize(
    ("architecture", "kinds"),
    [(name, "qkv o up down rest") for name in ("opt", "gpt_neox", "falcon", "mpt", "phi")]
    + [("mixtral", "qkv o experts rest"), ("deepseek_v3", "qkv o experts up down rest"), ("mamba", "block")],
)
def test_other_families_have_the_same_groups_and_unknown_blocks_are_whole(architecture: str, kinds: str) -> None:
    found = hybrids(*pair(architecture))
    last = max(part.block for part in found.parts if part.block is not None)
    assert sorted(part.kind for part in found.parts if part.block == last) == sorted(kinds.split())


def test_weights_that_wrap_rounded_numbers_are_compared_and_counted_by_what_they_wrap():
    reference = zoo.build("llama")
    weight = reference.model.layers[0].mlp.down_proj.weight.detach()
    rounded = zoo.Int8Weight.of(weight)
    reference.model.layers[0].mlp.down_proj.weight = torch.nn.Parameter(rounded, requires_grad=False)
    candidate = zoo.build("llama")
    for block in candidate.model.layers[:2]:
        block.mlp.down_proj.weight = torch.nn.Parameter(zoo.Int8Weight.of(weight), False)
    found = hybrids(reference, candidate)
    assert [part.name for part in found.parts] == ["model.layers.1 down"], "that of block 0 is rounded in both"
    assert found.size(found.parts[0]).bytes == (4 * weight.numel(), weight.numel() + 4 * len(weight))
    assert found.reuses == (True, True)


def requests_of(rows: list[Any]) -> Requests:
    """Return a request for each row of token ids, which scores every token but the first."""
    made = [Request(ids[:-1], np.arange(len(ids) - 1), ids[1:]) for ids in rows]
    return Requests(
        lengths=np.array([len(each.ids) for each in made]),
        counts=np.array([len(each.targets) for each in made]),
        highest=zoo.VOCABULARY - 1,
        make=made.__getitem__,
        key=lambda item: (item, item),
        describe=lambda items: f"{len(items)} rows",
        where=lambda item, target: f"{target} in {item}",
    )


def read(runner: Any, requests: Requests, batches: list[list[int]]) -> list[np.ndarray[Any, Any]]:
    with runner.measuring():
        runner.prepare(requests, compare=True)
        return [np.asarray(runner.distributions([requests.make(item) for item in batch]).stored()) for batch in batches]


def plain(whole: Any, other: Any, part: Part, made: Hybrids) -> Any:
    """Return a real copy of a model into which the tensors of a part of another were written."""
    found = copy.deepcopy(whole)
    target, source = dict(found.named_parameters()), dict(other.named_parameters())
    with torch.no_grad():
        for name, tensor in target.items():
            if made._owner(name.rpartition(".")[0]) in part.paths:
                tensor.copy_(source[name])
    return found


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "mixtral"])
def test_a_hybrid_that_reuses_hidden_states_gives_bit_by_bit_what_a_copy_with_its_weights_gives(architecture: str):
    reference, candidate = pair(architecture, num_hidden_layers=3)
    made = hybrids(reference, candidate)
    assert made.reuses == (True, True)
    generator = np.random.default_rng(0)
    requests = requests_of([generator.integers(3, zoo.VOCABULARY, size) for size in (40, 33, 17, 40, 9, 25)])
    batches = [[0, 1, 2], [3, 4, 5]]  # padded
    for part in made.parts[::2] if architecture == "llama" else made.parts[::4]:
        for healed in (False, True):
            whole, other = (candidate, reference) if healed else (reference, candidate)
            expected = runner_of(plain(whole, other, part, made))
            found = made.model(part, healed=healed).open()
            for ours, theirs in zip(read(found, requests, batches), read(expected, requests, batches), strict=True):
                np.testing.assert_array_equal(ours, theirs, err_msg=f"{part.name}, {healed=}")


def test_a_block_runs_once_for_all_hybrids_of_the_blocks_behind_it_and_the_next():
    reference, candidate = pair("llama", num_hidden_layers=6)
    made = hybrids(reference, candidate)
    requests = requests_of([np.arange(3, 43)])
    runs = [0] * 6
    for block in range(6):
        for each in (reference, candidate):
            each.model.layers[block].register_forward_hook(
                lambda _, given, __, block=block: runs.__setitem__(block, runs[block] + (given[0].shape[1] == 39))
            )
    for part in made.parts:
        if part.block is not None:
            with (runner := made.model(part, healed=False).open()).measuring():
                runner.prepare(requests, compare=True)
                before = list(runs)
                runner.distributions([requests.make(0)])
            counts = [now - then for now, then in zip(runs, before, strict=True)]
            assert sum(counts[: part.block]) <= 1
            assert counts[part.block :] == [1] * (6 - part.block)


class Sharing(torch.nn.Module):
    """A block that passes something on in addition to what it returns."""

    def __init__(self, block: torch.nn.Module, shared: dict[str, Any]) -> None:
        super().__init__()
        self.block, self.shared = block, shared

    def forward(self, hidden_states: torch.Tensor, **how: Any) -> torch.Tensor:
        found: torch.Tensor = self.block(hidden_states + self.shared.get("sum", 0), **how)
        self.shared["sum"] = found.mean()
        return found


def test_models_whose_modules_were_wrapped_are_refused_since_copies_would_run_the_originals():
    reference, candidate = pair("llama")
    candidate.model.layers[0].forward = candidate.model.layers[0].forward
    with pytest.raises(ModelError, match="expected modules that no library has wrapped"):
        hybrids(reference, candidate)


def test_a_block_that_is_replayed_has_the_attributes_of_the_block() -> None:
    replayed = Replay(torch.nn.Linear(3, 2), BlockMemory(), 0, 1)
    assert replayed.in_features == 3
    with pytest.raises(AttributeError, match="no attribute 'none'"):
        _ = replayed.none


def test_a_memory_keeps_of_each_batch_the_outputs_that_were_used_last_as_far_as_they_fit() -> None:
    memory, state = BlockMemory(most_levels=2), torch.zeros(2)
    memory.most_bytes = 3 * state.nbytes  # of each level, so that six fit

    def begin(batch: int) -> None:
        memory.begin(torch.nn.Identity(), (), {"input_ids": torch.tensor([[batch]])})

    def known(level: int) -> int:
        """The number of blocks that need not run."""
        return sum(memory.read(level, index) is not None for index in range(level))

    for batch in range(4):
        begin(batch)
        memory.write(3, state)
        memory.write(5, state)
    assert known(5) == 0  # of the last batch nothing fits
    begin(2)
    assert (known(2), known(5), known(4)) == (0, 5, 3)
    memory.write(7, state)  # in place of 5, since 3 was used last
    assert (known(7), known(6)) == (7, 3)


class Typed(Sharing):
    """A block that runs only between blocks of its own class, and shares nothing."""

    def __init__(self, block: torch.nn.Module) -> None:
        super().__init__(block, {})

    def forward(self, hidden_states: torch.Tensor, **how: Any) -> torch.Tensor:
        self.shared.clear()
        return super().forward(hidden_states, **how)


@pytest.mark.parametrize("is_typed", [False, True], ids=["blocks that share more", "blocks whose class is asked for"])
def test_nothing_is_reused_of_a_model_whose_blocks_know_of_each_other(is_typed: bool) -> None:
    models = pair("llama", num_hidden_layers=2 if is_typed else 3)

    def require_class(module: Any, *_: Any) -> None:
        if not all(isinstance(block, Typed) for block in module.layers):
            raise TypeError("expected typed blocks")

    for model in models:
        shared: dict[str, Any] = {}
        layers = (Typed(block) if is_typed else Sharing(block, shared) for block in model.model.layers)
        model.model.layers = torch.nn.ModuleList(layers)
        before = require_class if is_typed else lambda *_, shared=shared: shared.clear()
        model.model.register_forward_pre_hook(before)
    assert hybrids(*models, by="block").reuses == (False, False)
