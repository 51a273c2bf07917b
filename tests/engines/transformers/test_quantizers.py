"""A real quantizer, bitsandbytes on a processor, from what `load:` of lmgate.yaml can say."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from pytest_lmgate.engines.tokenizers import quiet
from pytest_lmgate.engines.transformers.head import Scorer, prove_head
from pytest_lmgate.engines.transformers.loading import LoadedModel
from pytest_lmgate.errors import ModelError
from pytest_lmgate.measure.divergence import Divergences
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.settings.file import load_project
from pytest_lmgate.settings.gate_options import DivergenceRequest, WindowProtocol
from pytest_lmgate.settings.session import Options
from pytest_lmgate.tools.fix.costs import bind_pair
from pytest_lmgate.tools.fix.search import Limit, fix, split
from tests.engines.transformers.measuring import load, measure_nll
from tests.models.zoo import build, documents, naive_nll, sliding, word_tokenizer, words

NF4 = "{load_in_4bit: true, bnb_4bit_quant_type: nf4}"
INT8 = "{load_in_8bit: true, llm_int8_threshold: 0.0}"
DOCUMENT = WindowProtocol("document")
NF4_HEAD_TOO = "{load_in_4bit: true, bnb_4bit_quant_type: nf4, llm_int8_skip_modules: [none]}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    build("llama").save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def weights_are_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On processors with AVX512-BF16 bitsandbytes packs 4-bit weights, and fails on layers as small as these."""
    pytest.importorskip("bitsandbytes")  # here, since torch's compiler comes with it, for 2 s
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: False)
    monkeypatch.setattr("bitsandbytes.backends.cpu.ops.has_avx512bf16", lambda: False)


def quantized_by(folder: Path, config: str) -> LoadedModel:
    return load(folder, load={"quantization_config": yaml.safe_load(config)})


def layers(model: Any) -> tuple[str, str]:
    return type(model.model.layers[0].self_attn.q_proj).__name__, type(model.lm_head).__name__


@pytest.mark.parametrize(
    ("config", "layer", "head", "streamed"),
    [
        (NF4, "Linear4bit", "Linear", True),
        (INT8, "Linear8bitLt", "Linear", True),
        (NF4_HEAD_TOO, "Linear4bit", "Linear4bit", False),
    ],
    ids=["nf4", "int8", "nf4, head too"],
)
def test_a_quantized_model_is_scored_as_its_own_logits_say(
    folder: Path, config: str, layer: str, head: str, streamed: bool
) -> None:
    streams = documents(50, 40, 9)
    plan = sliding(streams, 32, 16)

    found = quantized_by(folder, config)

    assert layers(found.model) == (layer, head), "quantized, and no more than asked for"
    with quiet(), torch.inference_mode():
        scorer = Scorer("tiny", prove_head(found.model, torch.from_numpy(streams.ids[0])))
    assert (scorer.head is not None) == streamed, "a head that is quantized itself is left to the model"
    nll = measure_nll(found, streams, plan)
    assert nll == pytest.approx(naive_nll(found.model, streams, plan), rel=1e-6, abs=1e-6)
    assert nll == pytest.approx(measure_nll(found, streams, plan, batch_size=1), rel=1e-6, abs=1e-6)
    assert abs(nll - measure_nll(load(folder), streams, plan)).max() > 1e-3, "another model"


def test_a_config_that_says_quantized_of_float_weights_is_an_error(folder: Path, tmp_path: Path) -> None:
    saved = shutil.copytree(folder, tmp_path / "m")
    quantized_by(folder, INT8).model.save_pretrained(tmp_path / "int8")
    quantized = json.loads((tmp_path / "int8/config.json").read_text())
    (saved / "config.json").write_text(json.dumps(quantized))
    with pytest.raises(ModelError, match=r"\(bitsandbytes\), but the weights in .* are not quantized: remove"):
        load(saved)
    shutil.copy(tmp_path / "int8/model.safetensors", saved)
    assert layers(load(saved).model)[0] == "Linear8bitLt"


def test_the_outliers_of_int8_do_not_depend_on_the_batch(folder: Path) -> None:
    """Columns are taken for outliers by the largest value in the batch, so that windows are read alone."""
    streams = documents(60, 60, 45, seed=3)
    plan = sliding(streams, 32, 16)
    found, said = quantized_by(folder, "{load_in_8bit: true}"), list[str]()

    one, all_at_once = (measure_nll(found, streams, plan, batch_size=size, remark=said.append) for size in (1, 16))

    assert all_at_once == pytest.approx(one, rel=1e-5, abs=1e-5)
    assert "the numbers of a row depend on the other rows of its batch" in said[0]


def test_a_model_that_bitsandbytes_makes_by_the_recipe_has_the_kl_and_the_verdict_that_were_promised(
    folder: Path, tmp_path: Path
) -> None:
    drawn = random.Random(1)
    rows = [" ".join(drawn.choices(words(), k=drawn.randint(8, 24))) for _ in range(100)]
    options: dict[str, Any] = {"quantization_config": yaml.safe_load(INT8)}

    def evaluator(**models: Any) -> Evaluator:
        named = {name: {"path": str(folder), "load": load} for name, load in models.items()}
        (tmp_path / "lmgate.yaml").write_text(json.dumps({"models": {"float": {"path": str(folder)}, **named}}))
        return Evaluator(load_project(tmp_path), Options(cache=tmp_path / "cache"))

    first = evaluator(quantized=options)
    arguments: dict[str, Any] = {"budget": None, "tokens": 10**6}
    bound = bind_pair(first, ("quantized", "float", rows), DOCUMENT)
    whole = fix(first, bound, limit=Limit("kl", 1e3, 0.95, DOCUMENT), **arguments).tried[0].kl
    limit = Limit("kl", 0.6 * whole, 0.95, DOCUMENT)
    found = fix(first, bound, limit=limit, **arguments)
    assert 0 < len(found.chosen.kept) < len(found.groups)

    options["quantization_config"]["llm_int8_skip_modules"] = list(found.linear)
    second = evaluator(made=options)
    made, original = second.resolver.model("made"), second.resolver.model("float")
    text = second.resolver.corpus(rows)
    (_, proof) = split(text, by_document=True, seed=0)
    judged, on_all = (
        limit.judge(
            second.measurements.get_or_measure(
                Divergences("compare", made, corpus, DivergenceRequest("float", DOCUMENT), original)
            ).statistics
        )
        for corpus in (proof, text)
    )
    assert judged.value.mean == pytest.approx(found.proof.value.mean, rel=1e-4)
    assert judged.outcome == on_all.outcome == found.proof.outcome == "pass"
