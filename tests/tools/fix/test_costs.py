"""Which costs stand out of others: one damaged layer among ordinary ones, and none where all are ordinary."""

import copy
import functools
import itertools
import os
import random
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pytest_lmgate.errors import ModelError
from pytest_lmgate.judge.baseline import Baselines
from pytest_lmgate.judge.judge import Judge
from pytest_lmgate.measure import lookup as pool
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.settings.decoding import parse_marker
from pytest_lmgate.settings.gate_options import WindowProtocol
from pytest_lmgate.settings.session import Options
from pytest_lmgate.tools.fix import costs as why_module
from pytest_lmgate.tools.fix.costs import Why, bind_pair, standing_out, why
from tests.measure import entries
from tests.measure.conftest import ALPHABET, CONTEXT, Workplace, make_model, make_tokenizer
from tests.models.encoders import masked

SMALLEST = 1e-7


@pytest.mark.parametrize(
    ("costs", "least", "named"),
    [
        ([0.010, 0.012, 0.009, 0.011, 0.2, 0.013, 0.008], [0.009, 0.011, 0.008, 0.010, 0.18, 0.012, 0.007], [4]),
        ([0.010, 0.3, 0.009, 0.011, 0.9, 0.013, 0.008], [0.010, 0.3, 0.009, 0.011, 0.9, 0.013, 0.008], [4, 1]),
        ([0.0, 0.0, 2e-4, 0.0], [0.0, 0.0, 1e-4, 0.0], [2]),  # the only part that changed
        ([0.0, 0.0, 2e-4, 0.0], [0.0, 0.0, -1e-4, 0.0], []),  # its noise could have made it
        ([0.0, 0.0, 2e-4, 0.0], [0.0, 0.0, None, 0.0], []),
        ([0.0, 0.0, 5e-8, 0.0], [0.0, 0.0, 4e-8, 0.0], []),  # rounding
    ],
)
def test_costs_beyond_the_spread_of_the_others_are_named_the_largest_first(costs: Any, least: Any, named: list[int]):
    assert standing_out(costs, least, smallest=SMALLEST) == named


def test_layers_whose_costs_differ_by_chance_are_rarely_named():
    random = np.random.default_rng(7)
    named = [bool(standing_out(costs, costs, smallest=SMALLEST)) for costs in random.lognormal(-5, 0.5, (500, 13))]
    assert np.mean(named) < 0.06


LAYERS = 4
WORDS = ["the", "cat", "sat", "on", "mat", "and", "dog", "log", "ran"]


def make_reference(seed: int = 0, layers: int = LAYERS) -> Any:
    return make_model(seed, num_hidden_layers=layers, initializer_range=0.2, hidden_size=16, intermediate_size=32)


def quantize(module: Any, bits: int) -> None:
    """Round each row of the matrices to as many steps as integers of some bits have."""
    steps = 2 ** (bits - 1) - 1
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() == 2:
                scale = weight.abs().amax(1, keepdim=True) / steps
                weight.copy_((weight / scale).round() * scale)


def rounded(layers: int, path: str, bits: int = 4) -> tuple[Any, Any]:
    """Return a model, and a copy of which a module was rounded."""
    reference = make_reference(layers=layers)
    candidate = copy.deepcopy(reference)
    quantize(candidate.get_submodule(path), bits)
    return reference, candidate


def text(words: int, seed: int = 0) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def measured(workplace: Workplace, candidate: Any, reference: Any, *, rows: Sequence[str] = (), **settings: Any) -> Why:
    asked = {"protocol": WindowProtocol("disjoint"), "tokens": 600, "seconds": 600.0, **settings}
    tokenizer = make_tokenizer()
    evaluator = workplace.session().evaluator
    names = (candidate, tokenizer), (reference, tokenizer), list(rows or [text(400)])
    return why(evaluator, bind_pair(evaluator, names, asked.pop("protocol")), **asked)


def test_the_layer_that_was_rounded_to_four_bits_is_named_and_all_others_cost_nothing(workplace: Workplace):
    reference, candidate = rounded(LAYERS, "model.layers.2")
    blocks = [list(each.model.layers) for each in (reference, candidate)]
    found = measured(workplace, candidate, reference)
    assert [list(each.model.layers) for each in (reference, candidate)] == blocks
    assert [each.part for each in found.parts if each.stands_out] == ["model.layers.2"]
    assert len(found.parts) == LAYERS + 1
    for each in found.parts:
        if each.part == "model.layers.2":
            # Of one part that changed, the cost and the relief are the whole divergence.
            assert each.cost.mean == pytest.approx(found.whole.kl.value) == pytest.approx(each.relief.mean)
            assert each.ratio == pytest.approx(found.whole.ratio.value)
        else:
            assert (each.cost.mean, each.relief.mean, each.ratio) == (0.0, 0.0, 1.0)


def test_a_short_time_reads_less_of_the_text(workplace: Workplace):
    models = rounded(2, "model.layers.1")[::-1]
    whole, short = (
        measured(workplace, *models, rows=[text(800)], tokens=3000, seconds=seconds) for seconds in (600.0, 0.001)
    )
    assert 2 * CONTEXT < short.whole.n < whole.whole.n
    assert (short.parts, short.missing, whole.missing) == ((), 2 * 3, 0)


def test_the_time_limit_ends_the_search_and_says_what_is_missing(workplace: Workplace, monkeypatch: pytest.MonkeyPatch):
    clock = itertools.count()
    monkeypatch.setattr(why_module, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    # Looking at the clock takes a second: the first four calls are before the search, two more are a measurement.
    found = measured(workplace, *rounded(3, "")[::-1], seconds=16)
    assert 0 < len(found.parts) <= 4
    assert 0 < found.missing < 2 * 4
    assert sum(each.relief is None for each in found.parts) == len(found.parts) - max(0, 4 - found.missing)
    assert found.needed > found.seconds


class Bigram(torch.nn.Module):
    """A causal model without blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(len(ALPHABET) + 1, len(ALPHABET) + 1)

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        return types.SimpleNamespace(logits=self.table(input_ids))


BERT = functools.partial(masked, "bert")


@pytest.mark.parametrize(
    ("candidate", "reference", "message"),
    [
        (lambda: make_reference(layers=2), make_reference, r"different blocks: 2 in model\.layers and 4 in model\.la"),
        (lambda: make_reference().half(), make_reference, r"computes in float16, and .* in float32: exp"),
        (Bigram, Bigram, "'in-memory Bigram': expected blocks in a list, as transformers' decoders"),
        (BERT, BERT, "BertForMaskedLM': expected a causal model that transformers runs$"),
    ],
)
def test_models_that_cannot_be_mixed_are_refused(workplace: Workplace, candidate: Any, reference: Any, message: str):
    with pytest.raises(ModelError, match=message):
        measured(workplace, candidate(), reference())


@pytest.fixture
def of_files(workplace: Workplace) -> Workplace:
    """A reference ``float``, a candidate ``int4`` whose second layer was rounded, and a text."""
    folder = workplace.folder / "models"
    for name, model in zip(("float", "int4"), rounded(3, "model.layers.1"), strict=True):
        model.save_pretrained(folder / name)
    make_tokenizer().save_pretrained(folder / "int4")
    (workplace.folder / "data" / "text.txt").write_text(text(400))
    return workplace


def of_names(workplace: Workplace) -> tuple[Evaluator, Why]:
    evaluator = workplace.session().evaluator
    pair = bind_pair(evaluator, ("models/int4", "float", "text"), WindowProtocol("disjoint"))
    return evaluator, why(evaluator, pair, tokens=600, seconds=600.0)


def test_models_that_do_not_fit_in_memory_together_are_refused(of_files: Workplace, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool, "available_bytes", lambda _: 0)
    with pytest.raises(ModelError, match=r"^'float' and 'models/int4' do not fit in memory together$"):
        of_names(of_files)


def test_hybrids_of_models_from_files_come_from_the_cache_the_second_time(of_files: Workplace):
    runs = [of_names(of_files) for _ in range(2)]
    (_, first), (_, again) = runs
    assert [each.part for each in first.parts if each.stands_out] == ["model.layers.1"]
    assert first.parts == again.parts
    missed = [sum(not lookup.hit for lookup in evaluator.measurements.lookups) for evaluator, _ in runs]
    assert missed == [1 + 2 * 4, 0]


def test_by_group_the_layers_that_were_rounded_are_named_and_unchanged_groups_are_left_out(workplace: Workplace):
    reference, candidate = rounded(2, "model.layers", bits=8)
    quantize(candidate.model.layers[1].mlp.down_proj, bits=3)
    found = measured(workplace, candidate, reference, by="group")
    assert [each.part for each in found.parts if each.stands_out] == ["model.layers.1 down"]
    assert len(found.parts) == 4 * 2


def test_a_failing_comparison_names_the_command_and_the_file(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    entries.entry(workplace, "twin", section="models", path="models/float")
    evaluator = workplace.session().evaluator
    judge = Judge(evaluator, Options(cache=tmp_path / "cache"), Baselines(tmp_path / "lmgate-baseline.json"))

    def command(**given: Any) -> str:
        return judge._layers(evaluator.bind_gate(parse_marker("kl_max", ("twin", "float", "text", 1), given)))

    monkeypatch.chdir(workplace.folder)
    plain = "lmgate why twin text --against float --protocol sliding"
    assert command() == plain
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "lmgate.yaml").touch()
    monkeypatch.chdir(elsewhere)
    assert command() == f"{plain} --config {os.path.relpath(workplace.folder / 'lmgate.yaml')}"
    given = {"protocol": "lm-eval", "max_length": 64, "add_bos_token": None, "allow_beyond_context": True}
    options = "--protocol lm-eval --max-length 64 -o allow_beyond_context=true -o add_bos_token=null --config"
    assert options in command(**given)
