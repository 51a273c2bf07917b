"""A gate on a model that bitsandbytes quantizes while it is loaded, from lmgate.yaml alone."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch
import transformers

from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project
from tests.models.zoo import build, word_tokenizer, words

pytest.importorskip("bitsandbytes")


# On processors with AVX512-BF16 bitsandbytes packs 4-bit weights, and fails on layers as small as these.
UNPACKED = """
    import bitsandbytes.backends.cpu.ops, bitsandbytes.nn.modules
    bitsandbytes.nn.modules.has_avx512bf16 = bitsandbytes.backends.cpu.ops.has_avx512bf16 = lambda: False
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for module in ("nn.modules", "backends.cpu.ops"):
        monkeypatch.setattr(f"bitsandbytes.{module}.has_avx512bf16", lambda: False)
    build("llama").save_pretrained(tmp_path / "model")
    word_tokenizer().save_pretrained(tmp_path / "model")
    draw = random.Random(5)
    text = " ".join(draw.choice(words()) for _ in range(60))
    return Project(tmp_path).write(
        pytest_ini="[pytest]\n",
        words_txt=text,
        conftest=COUNT_MEASUREMENTS + UNPACKED,
        lmgate_yaml="""
            defaults: {device: cpu}
            models:
              float: {path: model}
              nf4:
                path: model
                load: {quantization_config: {load_in_4bit: true, bnb_4bit_quant_type: nf4}}
              int8:
                path: model
                load: {quantization_config: {load_in_8bit: true, llm_int8_threshold: 0.0}}
            datasets:
              words: {path: words.txt}
        """,
    )


def by_hand(project: Project, quantization: transformers.BitsAndBytesConfig | None) -> float:
    """Perplexity of the whole text in one window, from the library's own logits in float64."""
    folder = project.folder / "model"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=quantization).eval()
    ids = word_tokenizer()((project.folder / "words.txt").read_text(), return_tensors="pt")["input_ids"]
    with torch.no_grad():
        log_p = torch.log_softmax(model(ids).logits[0, :-1].double(), -1)
    return math.exp(-log_p.gather(-1, ids[0, 1:, None]).mean())


def test_a_gate_on_a_model_quantized_while_loading(project: Project) -> None:
    expected = {
        "float": by_hand(project, None),
        "nf4": by_hand(project, transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")),
    }
    assert abs(expected["nf4"] / expected["float"] - 1) > 1e-3, "quantizing changes something"
    project.write(
        test_quantized=f"""
            import pytest

            @pytest.mark.ppl_max("nf4", "words", {expected["nf4"]} * 1.00001)
            def test_within(): pass

            @pytest.mark.ppl_max("nf4", "words", {expected["nf4"]} * 0.99999)
            def test_above(): pass

            def test_each_is_a_model_of_its_own(ppl_of):
                assert ppl_of("float", "words") == pytest.approx({expected["float"]}, rel=1e-6)
                assert len({{ppl_of(model, "words") for model in ("float", "nf4", "int8")}}) == 3
        """
    )

    first = project.run("-W", "error", "--lmgate-report", "json:report.json").expect(1, passed=2, failed=1)
    first.says("perplexity", "of 'nf4' on 'words' is above the limit")
    within, above = project.report()["gates"]
    assert (within["verdict"], above["verdict"], within["cached"]) == ("pass", "fail", False)
    assert within["value"] == above["value"] == pytest.approx(expected["nf4"], rel=1e-6)
    assert sorted(project.measured) == ["float", "int8", "nf4"]

    project.run("--lmgate-report", "json:report.json").expect(1, passed=2, failed=1)
    again, _ = project.report()["gates"]
    assert again["cached"]
    assert again["value"] == within["value"]
    assert len(project.measured) == 3, "the second run only looked up"
