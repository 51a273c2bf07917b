"""Faults of models: strength 0 changes no bit, the model keeps every bit, and each fault is what its sentence says.

The perplexity of each broken model is compared with that of a loop that has no code of the drill: it copies the model,
breaks it by hand and sums the losses of whole texts.
"""

import copy
import dataclasses
import functools
import json
import math
from itertools import pairwise
from typing import Any

import pytest
import torch

from pytest_lmgate.engines.base import Model, Runner
from pytest_lmgate.engines.tokenizers import tokenizer_facts
from pytest_lmgate.errors import ConfigError, DataError
from pytest_lmgate.measure.rows import DatasetRows
from pytest_lmgate.settings.entries import DatasetSpec
from pytest_lmgate.tools.drill.evaluator import breakable
from pytest_lmgate.tools.drill.faults import chosen_faults, known_faults
from pytest_lmgate.tools.drill.in_transformers import InTransformers
from pytest_lmgate.tools.drill.planting import Fault, NotPlanted
from pytest_lmgate.tools.parts.blocks import BlockModel, block_list
from tests.engines.projects import trained_tokenizer
from tests.models import zoo
from tests.tools.drill.by_hand import BY_HAND, layers, linear

FAULTS = known_faults()
# An architecture that has what the fault breaks; the others are planted in a Llama.
ARCHITECTURES = {"bias": "gpt2", "logit-scale": "cohere", **dict.fromkeys(("window", "no-window", "softcap"), "gemma2")}
IN_MODELS = [name for name, fault in FAULTS.items() if fault.kind not in ("cache", "texts", "data")]


def texts() -> torch.Tensor:
    return torch.randint(0, zoo.VOCABULARY, (4, 48), generator=torch.Generator().manual_seed(11))


@functools.cache
def _model(architecture: str, *, adapted: bool, **config: Any) -> Any:
    model = zoo.build(architecture, num_hidden_layers=4, **config)
    for key, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 0.0 if key.endswith("bias") else 1.0, 0.5)
    return (zoo.lora(model, "q_proj", "v_proj") if adapted else model).requires_grad_(False)


def model_for(name: str) -> Any:
    """Return a model whose biases and norms are not those of a new one; tests leave it as it is."""
    return _model(ARCHITECTURES.get(name, "llama"), adapted=name == "base", tie_word_embeddings=name == "untied")


def blocks(model: Any) -> BlockModel:
    return block_list(zoo.loaded(model, zoo.word_tokenizer()), "model")


def planted(fault: Fault, model: Any, strength: int) -> Any:
    return fault.planted(InTransformers(blocks(model), tokenizer_facts(zoo.word_tokenizer())), strength).model


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=texts(), use_cache=False).logits
        return found


def perplexity(model: Any) -> float:
    ids, said = texts(), logits(model).double().log_softmax(-1)
    return math.exp(-float(said[:, :-1].gather(-1, ids[:, 1:, None]).mean()))


@pytest.mark.parametrize("name", IN_MODELS)
def test_strength_0_gives_the_same_bits_and_the_model_keeps_every_bit_while_its_copy_is_broken(name: str) -> None:
    model, fault = model_for(name), FAULTS[name]
    before, weights = logits(model), {key: value.clone() for key, value in model.state_dict().items()}
    assert torch.equal(logits(planted(fault, model, 0)), before)
    broken = planted(fault, model, len(fault.levels))
    assert not torch.equal(logits(broken), before), "the fault does nothing"
    assert torch.equal(logits(model), before)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", BY_HAND)
def test_the_perplexity_at_the_middle_strength_is_that_of_a_model_broken_by_hand(name: str) -> None:
    fault, model = FAULTS[name], model_for(name)
    if name == "sums":  # the layers are narrow: with fewer products, a sum has several steps
        fault = dataclasses.replace(fault, levels=(8,))
    strength = (len(fault.levels) + 1) // 2
    by_hand = copy.deepcopy(model)
    with torch.no_grad():
        BY_HAND[name](by_hand, fault.levels[strength - 1])
    healthy, expected = perplexity(model), perplexity(by_hand)
    assert abs(expected / healthy - 1) > 1e-6, "the fault made by hand does nothing"
    assert perplexity(planted(fault, model, strength)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("noise", "llama"), ("fp8-e4m3", "llama"), ("heads-swapped", "llama"), ("bfloat16", "gpt2"), ("bias", "gpt2")],
)
def test_tensors_for_which_there_is_no_room_are_made_while_their_block_runs_and_have_the_same_bits(
    name: str, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, fault = _model(architecture, adapted=False), FAULTS[name]
    held = logits(planted(fault, model, len(fault.levels)))
    monkeypatch.setattr("pytest_lmgate.tools.drill.in_transformers._LEAST_SPARE", 0)
    monkeypatch.setattr("pytest_lmgate.tools.drill.in_transformers._SPARE", 0)
    broken = planted(fault, model, len(fault.levels))
    shared = {id(parameter) for parameter in model.parameters()}
    for _ in range(2):
        assert torch.equal(logits(broken), held)
        assert {id(parameter) for parameter in broken.parameters()} == shared, "a broken tensor is kept"
    assert not torch.equal(held, logits(model))


def test_noise_the_one_fault_not_broken_by_hand_is_of_the_size_that_its_level_says_and_the_same_each_time() -> None:
    assert {*BY_HAND, "noise"} == set(IN_MODELS)
    fault, model = FAULTS["noise"], model_for("noise")
    broken, again = (planted(fault, model, 5) for _ in range(2))
    for ours, theirs, same in zip(linear(layers(broken)), linear(layers(model)), linear(layers(again)), strict=True):
        assert float((ours.weight - theirs.weight).std() / theirs.weight.std()) == pytest.approx(0.2, rel=0.15)
        assert torch.equal(ours.weight, same.weight)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("base", "no LoRA adapter"), ("bias", "no bias with a value of its own"), ("window", "no window of attention"),
     ("softcap", "no soft cap"), ("logit-scale", "no scale of logits"), ("norm", "no norm with a value of its own"),
     ("untied", "its head has weights of its own"), ("words", "not a byte-level one")],
)  # fmt: skip
def test_a_fault_says_what_a_model_lacks(name: str, reason: str) -> None:
    with pytest.raises(NotPlanted, match=reason):
        planted(FAULTS[name], zoo.build("llama"), 1)


def test_a_model_of_another_engine_is_not_tried() -> None:
    with pytest.raises(NotPlanted, match=r"its engine is not transformers, llama\.cpp or server"):
        breakable(Model("die", Runner), Runner())


def test_quantized_weights_are_not_rounded_and_those_of_bfloat16_have_no_digits_to_lose_to_it() -> None:
    layer = (model := zoo.build("llama")).model.layers[0].mlp.up_proj
    layer.weight = torch.nn.Parameter(layer.weight.to(torch.int8), requires_grad=False)
    with pytest.raises(NotPlanted, match="quantized form"):
        planted(FAULTS["round-first"], model, 1)
    with pytest.raises(NotPlanted, match="no more digits than bfloat16"):
        planted(FAULTS["bfloat16"], zoo.build("llama", dtype=torch.bfloat16), 4)


def test_tied_weights_stay_tied() -> None:
    model = zoo.build("llama", tie_word_embeddings=True)
    broken = planted(FAULTS["noise"], model, 3)
    assert broken.lm_head.weight is broken.model.embed_tokens.weight is model.lm_head.weight


def test_all_rows_are_not_told_as_one_row() -> None:
    shown = [FAULTS["wrong-layer"].shown(strength) for strength in (1, len(FAULTS["wrong-layer"].levels))]
    assert shown == ["2% of its rows", "100% of its rows"]


def test_faults_are_chosen_by_name_or_kind_and_a_misspelt_one_is_named_with_the_nearest() -> None:
    assert [fault.name for fault in chosen_faults("skip, answers")] == ["skip", "answers"]
    assert {fault.kind for fault in chosen_faults("texts")} == {"texts"}
    assert len(chosen_faults(None)) == len(FAULTS)
    with pytest.raises(ConfigError, match=r"no fault is called 'skp'.*skip"):
        chosen_faults("skp")


ROWS = tuple({"q": f"q{at}", "a": f"a{at}", "subject": "xy"[at >= 3]} for at in range(8))
SHOWN = ({"q": "q", "a": "a", "subject": "z"},)


def dataset(**spec: Any) -> DatasetRows:
    spec = {"path": "rows.jsonl", "prompt": "{q}", **spec}
    return DatasetRows("rows", DatasetSpec(**spec), ROWS, SHOWN if "examples" in spec else ())


def changed(name: str, strength: int, **spec: Any) -> DatasetRows:
    fault = FAULTS[name]
    assert fault.rows is not None
    return fault.rows(dataset(**spec), fault.levels[strength - 1])


def test_answers_of_the_last_rows_are_those_of_the_row_before() -> None:
    rows = changed("answers", 4, references="a").rows  # a quarter of 8
    assert [row["a"] for row in rows] == ["a0", "a1", "a2", "a3", "a4", "a5", "a7", "a6"]
    assert [row["q"] for row in rows] == [row["q"] for row in ROWS]


@pytest.mark.parametrize("column", ["average_by", "tags", "cluster"])
def test_a_subject_is_missing(column: str) -> None:
    assert changed("subject", 1, references="a", **{column: "subject"}).rows == ROWS[3:]


def test_examples_are_rows_of_the_test_which_a_measurement_refuses() -> None:
    rows = changed("examples", 1, references="a", examples="shown.jsonl")
    assert rows.examples == ROWS[:1]
    with pytest.raises(DataError, match="expected none of the dataset's own rows"):
        _ = rows.task


@pytest.mark.parametrize(
    ("name", "spec", "reason"),
    [("answers", {}, "its dataset has no column of answers"),
     ("subject", {"references": "a"}, "its dataset has no subjects"),
     ("examples", {"references": "a"}, "its dataset has no examples")],
)  # fmt: skip
def test_a_fault_of_data_says_what_a_dataset_lacks(name: str, spec: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotPlanted, match=reason):
        changed(name, 1, **spec)


def bytes_to_unicode() -> dict[int, str]:
    """Return the letters by which GPT-2 writes bytes: those that print stand for themselves."""
    prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in prints)
    return {byte: chr(byte) for byte in prints} | {byte: chr(256 + at) for at, byte in enumerate(others)}


def merged(word: bytes, ranks: dict[tuple[str, str], int]) -> list[str]:
    """Return the tokens of a word by the merges of byte-level BPE, the first in the list first."""
    letters = bytes_to_unicode()
    parts = [letters[byte] for byte in word]
    while pairs := [(ranks[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in ranks]:
        _, at = min(pairs)
        parts[at : at + 2] = ["".join(parts[at : at + 2])]
    return parts


def test_digits_and_signs_are_words_of_their_own_to_a_tokenizer() -> None:
    tokenizer = trained_tokenizer()
    state = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    ranks = {tuple(pair): rank for rank, pair in enumerate(state["merges"])}
    made = InTransformers(block_list(zoo.loaded(zoo.build("llama"), tokenizer), "model"), tokenizer_facts(tokenizer))
    text = "It's  (said) 1984, don't end.\n\nnew: été"
    facts = FAULTS["words"].planted(made, 1).tokenizer
    words = ["It", "'", "s", "  ", "(", "said", ")", " ", *"1984,", " don", "'", "t", " end", ".", "\n\n", "new", ":"]
    words.append(" été")
    ids = [state["vocab"][token] for word in words for token in merged(word.encode(), ranks)]
    assert list(facts.encode(text, False)) == ids
    assert list(facts.encode(text, False)) != list(tokenizer_facts(tokenizer).encode(text, False))
    assert list(facts.encode(text, True)) == [1, *ids]
