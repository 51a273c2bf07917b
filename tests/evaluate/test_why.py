"""Which layers of a candidate cost what: a damaged layer is found, and unchanged ones cost nothing at all."""

from __future__ import annotations

import copy
import random
import types
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from pytest_lmgate.backends.hf.hybrids import Hybrids
from pytest_lmgate.engine import pool
from pytest_lmgate.errors import ModelError
from pytest_lmgate.evaluate.why import Why, why
from pytest_lmgate.spec.protocol import Protocol
from tests.evaluate.conftest import ALPHABET, CONTEXT, Workplace, make_model, make_tokenizer
from tests.models.encoders import framed_tokenizer, masked

LAYERS = 12
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


def text(words: int, seed: int = 0) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def measured(workplace: Workplace, candidate: Any, reference: Any, *, rows: Sequence[str] = (), **settings: Any) -> Why:
    asked = {"protocol": Protocol("disjoint"), "tokens": 1500, "seconds": 600.0, **settings}
    tokenizer = make_tokenizer()
    evaluator = workplace.session().evaluator
    return why(evaluator, (candidate, tokenizer), (reference, tokenizer), list(rows or [text(800)]), **asked)


def test_the_layer_that_was_rounded_to_four_bits_is_named_and_all_others_cost_nothing(workplace: Workplace) -> None:
    reference = make_reference()
    candidate = copy.deepcopy(reference)
    quantize(candidate.model.layers[7], bits=4)
    found = measured(workplace, candidate, reference)
    assert [each.part for each in found.parts if each.stands_out] == ["model.layers.7"]
    assert len(found.parts) == LAYERS + 1
    for each in found.parts:
        if each.part == "model.layers.7":
            # Of one part that changed, the cost and the relief are the whole divergence.
            assert each.cost.mean == pytest.approx(found.whole.kl.value) == pytest.approx(each.relief.mean)
            assert each.ratio == pytest.approx(found.whole.ratio.value)
        else:
            assert (each.cost.mean, each.relief.mean, each.ratio) == (0.0, 0.0, 1.0)


def test_no_layer_of_a_model_that_was_rounded_alike_everywhere_is_named(workplace: Workplace) -> None:
    reference = make_reference(layers=6)
    candidate = copy.deepcopy(reference)
    quantize(candidate, bits=8)
    found = measured(workplace, candidate, reference)
    assert all(each.cost.mean > 0 for each in found.parts)
    assert not any(each.stands_out for each in found.parts)


def test_what_is_outside_of_the_blocks_is_a_part(workplace: Workplace) -> None:
    reference = make_reference(layers=3)
    candidate = copy.deepcopy(reference)
    with torch.no_grad():
        candidate.lm_head.weight.mul_(1.5)
    found = measured(workplace, candidate, reference)
    assert [each.part for each in found.parts if each.stands_out] == ["outside of the blocks"]
    assert found.parts[-1].cost.mean == pytest.approx(found.whole.kl.value)


def test_models_are_left_as_they_are(workplace: Workplace) -> None:
    reference = make_reference(layers=3)
    candidate = copy.deepcopy(reference)
    quantize(candidate, bits=4)
    blocks = [list(each.model.layers) for each in (reference, candidate)]
    measured(workplace, candidate, reference)
    assert [list(each.model.layers) for each in (reference, candidate)] == blocks


def test_a_short_time_reads_less_of_the_text(workplace: Workplace) -> None:
    reference = make_reference(layers=3)
    candidate = copy.deepcopy(reference)
    quantize(candidate.model.layers[1], bits=4)
    whole = measured(workplace, candidate, reference, tokens=3000)
    short = measured(workplace, candidate, reference, tokens=3000, seconds=0.001)
    assert short.whole.n < whole.whole.n
    assert short.whole.n > 2 * CONTEXT


def test_of_a_dataset_of_rows_no_more_are_read_than_are_needed(workplace: Workplace) -> None:
    reference = make_reference(layers=2)
    candidate = copy.deepcopy(reference)
    quantize(candidate.model.layers[1], bits=4)
    rows = [text(20, seed) for seed in range(300)]
    found = measured(workplace, candidate, reference, rows=rows, tokens=1000)
    assert 900 < found.whole.n < 1100


def test_models_of_other_shapes_are_refused(workplace: Workplace) -> None:
    with pytest.raises(ModelError, match=r"have different blocks: 2 in model\.layers against 3 in model\.layers"):
        measured(workplace, make_reference(layers=2), make_reference(layers=3))


def test_models_that_compute_in_two_dtypes_are_refused(workplace: Workplace) -> None:
    with pytest.raises(ModelError, match=r"computes in float16, and its reference .* in float32: expected one dtype"):
        measured(workplace, make_reference().half(), make_reference())


def test_models_that_are_no_list_of_blocks_are_refused(workplace: Workplace) -> None:
    class Bigram(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(len(ALPHABET) + 1, len(ALPHABET) + 1)

        def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
            return types.SimpleNamespace(logits=self.table(input_ids))

    with pytest.raises(ModelError, match="'in-memory Bigram': expected blocks in a list, as transformers' decoders"):
        measured(workplace, Bigram(), Bigram())


def test_masked_models_are_refused(workplace: Workplace) -> None:
    pair = masked("bert"), framed_tokenizer(mask=True)
    with pytest.raises(ModelError, match=r"BertForMaskedLM': expected a causal model that transformers runs$"):
        why(
            workplace.session().evaluator, pair, pair, ["w1 w2"],
            protocol=Protocol("disjoint"), tokens=100, seconds=1.0,
        )  # fmt: skip


def of_files(workplace: Workplace) -> Workplace:
    """Write a reference ``float`` and a candidate ``int4`` whose second layer was rounded, and a text."""
    folder = workplace.folder / "models"
    reference = make_reference(layers=3)
    reference.save_pretrained(folder / "float")
    quantize(reference.model.layers[1], bits=4)
    reference.save_pretrained(folder / "int4")
    make_tokenizer().save_pretrained(folder / "int4")
    (workplace.folder / "data" / "text.txt").write_text(text(800))
    return workplace


def test_models_that_do_not_fit_in_memory_together_are_refused(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator = of_files(workplace).session().evaluator
    monkeypatch.setattr(pool, "available_bytes", lambda _: 0)
    with pytest.raises(ModelError, match=r"^'float' and 'models/int4' do not fit in memory together$"):
        why(evaluator, "models/int4", "float", "text", protocol=Protocol("disjoint"), tokens=1500, seconds=600.0)


@pytest.mark.parametrize("healed", [False, True])
def test_a_hybrid_is_another_one_where_a_library_of_either_model_is_another(workplace: Workplace, healed: bool) -> None:
    evaluator = of_files(workplace).session().evaluator
    reference, candidate = (evaluator.resolver.model(name) for name in ("float", "models/int4"))
    runners = evaluator.together(reference, candidate)

    def ingredients(of_reference: str, of_candidate: str) -> str:
        models = (
            replace(model, runtime={**model.runtime, "kernels": version})
            for model, version in ((reference, of_reference), (candidate, of_candidate))
        )
        return str(Hybrids(*models, runners).model("model.layers.1", healed=healed).ingredients)

    assert len({ingredients("1", "1"), ingredients("1", "2"), ingredients("2", "1")}) == 3


def test_hybrids_of_models_from_files_come_from_the_cache_the_second_time(
    workplace: Workplace, loads: list[str]
) -> None:
    of_files(workplace)
    asked = {"protocol": Protocol("disjoint"), "tokens": 1500, "seconds": 600.0}

    def run() -> tuple[Why, int]:
        evaluator = workplace.session().evaluator
        found = why(evaluator, "models/int4", "float", "text", **asked)  # type: ignore[arg-type]
        return found, sum(not lookup.hit for lookup in evaluator.lookups)

    (first, missed), (again, missed_again) = run(), run()
    assert [each.part for each in first.parts if each.stands_out] == ["model.layers.1"]
    assert first.parts == again.parts
    assert (missed, missed_again) == (1 + 2 * 4, 0)
