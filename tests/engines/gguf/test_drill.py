"""Faults in GGUF files: the tensors of the broken file, its perplexity, and what it writes."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is NOT installed; make test-gguf runs these tests")

import gguf
import numpy as np
import torch

from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.tools.drill.faults import known_faults
from pytest_lmgate.tools.drill.in_gguf import InGguf
from pytest_lmgate.tools.drill.planting import NotPlanted
from pytest_lmgate.tools.parts.tensors import write
from pytest_lmgate.windows.tokens import PromptIds
from tests.engines.gguf.converting import _permuted, write_gguf
from tests.engines.gguf.test_fix import metadata_of, run
from tests.engines.numbers import one_window
from tests.engines.projects import described, text_of, write_float_model
from tests.tools.drill.by_hand import BY_HAND

FAULTS = known_faults()
ON_TENSORS = [
    name
    for name, fault in FAULTS.items()
    if fault.kind in ("weights", "arithmetic")
    and name not in ("round-sensitive", "base", "bias", "activations", "sums")
]
NEW = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 4 blocks whose norms are not those of a new one, in float32, float16 and q8_0."""
    folder = tmp_path_factory.mktemp("drill")
    model, tokenizer = write_float_model(folder / "float", num_hidden_layers=4)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter.data, 1.0, 0.5)
    model.save_pretrained(folder / "float")
    for dtype in ("f32", "f16", "q8_0"):
        write_gguf(folder / f"{dtype}.gguf", model, tokenizer, dtype=dtype)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder / "float").requires_grad_(False)


def broken(folder: Path, name: str, strength: int, dtype: str = "f32") -> InGguf:
    made = InGguf("m", described("m", path=str(folder / f"{dtype}.gguf")).open())
    FAULTS[name].planted(made, strength)
    return made


def tensors_of(path: Path) -> dict[str, Any]:
    return {
        tensor.name: (tensor.tensor_type.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
        for tensor in gguf.GGUFReader(path).tensors
    }


def ids() -> torch.Tensor:
    return torch.randint(3, 320, (1, 300), generator=torch.Generator().manual_seed(5))


def perplexity(model: Any) -> float:
    with torch.inference_mode():
        said = model(input_ids=ids()).logits[0].double().log_softmax(-1)
    return math.exp(-float(said[:-1].gather(-1, ids()[0, 1:, None]).mean()))


def perplexity_of(runner: Any) -> float:
    requests = one_window(ids()[0].numpy())
    runner.prepare(requests)
    return math.exp(float(np.mean(runner.score([requests.make(0)])[0])))


def break_by_hand(name: str, model: Any, level: float) -> None:
    if name != "wrong-layer":
        BY_HAND[name](model, level)
        return
    # The first of the largest tensors, whose rows llama.cpp has in another order.
    ours, theirs = (model.model.layers[at].self_attn.q_proj.weight for at in (2, 1))
    order = _permuted(np.arange(len(ours))[:, None], 2)[:, 0]
    rows = torch.from_numpy(order[: math.ceil(level * len(ours))].copy())
    ours[rows] = theirs[rows]


@pytest.mark.parametrize("name", [name for name in ON_TENSORS if name != "noise"])
def test_the_perplexity_at_the_middle_strength_is_that_of_a_model_broken_by_hand(
    folder: Path, model: Any, name: str
) -> None:
    fault, by_hand = FAULTS[name], copy.deepcopy(model)
    strength = (len(fault.levels) + 1) // 2
    break_by_hand(name, by_hand, fault.levels[strength - 1])
    expected = perplexity(by_hand)
    assert abs(expected / perplexity(model) - 1) > 1e-5, "the fault made by hand does nothing"
    runner = broken(folder, name, strength).open()
    assert perplexity_of(runner) == pytest.approx(expected, rel=1e-5)
    runner.close()


def written_to(path: Path, made: InGguf) -> dict[str, Any]:
    with path.open("wb") as file:
        write(file, made._file, made._changed)
    return tensors_of(path)


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
def test_other_tensors_and_the_metadata_are_those_of_the_file(folder: Path, tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "broken.gguf"
    ours, theirs = written_to(path, broken(folder, "scale", 6, dtype)), tensors_of(folder / f"{dtype}.gguf")
    kind, numbers = ours.pop(name := "blk.2.ffn_down.weight")
    assert kind == ("F16" if dtype == "f16" else "F32")
    assert np.array_equal(numbers, 2 * theirs.pop(name)[1])
    assert list(ours) == list(theirs)
    assert all(ours[key][0] == theirs[key][0] and np.array_equal(ours[key][1], theirs[key][1]) for key in theirs)
    assert metadata_of(path) == metadata_of(folder / f"{dtype}.gguf")


def test_noise_is_of_the_size_that_its_level_says(folder: Path, tmp_path: Path) -> None:
    made = broken(folder, "noise", 5)
    ours, theirs = written_to(tmp_path / "broken.gguf", made), tensors_of(folder / "f32.gguf")
    assert len(made._changed) == 4 * 7
    for name in made._changed:
        assert np.std(ours[name][1] - theirs[name][1]) / np.std(theirs[name][1]) == pytest.approx(0.2, rel=0.1)


def prompts(tokenizer: Any) -> list[PromptIds]:
    texts = [text_of(words, words) for words in (12, 7)]
    return [PromptIds(row, text, tuple(tokenizer.encode(text, True))) for row, text in enumerate(texts)]


def written(runner: Any, some: list[PromptIds], **settings: Any) -> list[Any]:
    asked = GenerationSettings(max_new_tokens=NEW, **settings)
    runner.prepare_writing(some, asked)
    texts: list[Any] = runner.generate(some, asked)
    runner.close()
    return texts


@pytest.mark.parametrize("name", [*ON_TENSORS, "prompt-cut", "end-token", "temperature", "bos-missing", "bos-doubled"])
def test_a_fault_of_strength_0_gives_the_same_bits(folder: Path, name: str) -> None:
    healthy, same = described("m", path=str(folder / "q8_0.gguf")).open(), broken(folder, name, 0, "q8_0").open()
    assert perplexity_of(same) == perplexity_of(healthy)
    assert written(same, prompts(same.tokenizer)) == written(healthy, prompts(healthy.tokenizer))


def test_texts_of_a_broken_file_are_those_of_the_file_with_other_prompts_and_settings(folder: Path) -> None:
    def healthy() -> Any:
        return described("m", path=str(folder / "f32.gguf")).open()

    some = prompts(healthy().tokenizer)
    cut = [PromptIds(each.row, each.prompt, each.ids[4:]) for each in some]
    assert written(broken(folder, "prompt-cut", 2).open(), some) == written(healthy(), cut)
    sampled = written(healthy(), some, temperature=0.6, seed=1234)
    assert written(broken(folder, "temperature", 2).open(), some) == sampled
    for name, begin in (("bos-missing", []), ("bos-doubled", [1, 1])):
        runner = broken(folder, name, 1).open()
        assert list(runner.tokenizer.encode("the cat", True)) == [*begin, *runner.tokenizer.encode("the cat", False)]
        runner.close()


def test_the_end_token_of_a_broken_file_does_not_end_a_text(folder: Path, model: Any, tmp_path: Path) -> None:
    import transformers

    loud = copy.deepcopy(model)
    loud.lm_head.weight[2] *= 6
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "float")
    write_gguf(tmp_path / "f32.gguf", loud, tokenizer)
    runner = described("m", path=str(tmp_path / "f32.gguf")).open()
    some = prompts(runner.tokenizer)
    assert any(count < NEW for _, count, _ in written(runner, some))
    texts = []
    with torch.inference_mode():
        for prompt in some:
            row = list(prompt.ids)
            for _ in range(NEW):
                row.append(int(loud(input_ids=torch.tensor([row])).logits[0, -1].argmax()))
            texts.append((tokenizer.decode(row[len(prompt.ids) :], skip_special_tokens=True), NEW, False))
    assert written(broken(tmp_path, "end-token", 1).open(), some) == texts


ONLY = "a GGUF, of which only tensors and texts can be broken"
REASONS = dict.fromkeys(("skip", "round-sensitive", "kv-bits", "words"), ONLY)
REASONS |= {"bias": "no bias with a value", "penalty": "the loop that writes texts with llama.cpp has no penalties"}


@pytest.mark.parametrize("name", REASONS)
def test_a_fault_says_why_a_gguf_cannot_have_it(folder: Path, name: str) -> None:
    with pytest.raises(NotPlanted, match=REASONS[name]):
        broken(folder, name, 1)


def test_a_drill_of_gguf_files_leaves_their_folder_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_VERSION")
    rows = [{"text": text_of(12, seed)} for seed in range(40)]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    how = {"model": "q8", "dataset": "rows", "protocol": "document"}
    gates = [{"kl_max": {**how, "reference": "f32", "limit": 0.05}}, {"ppl_max": {**how, "limit": 1e12}}]
    models = {"q8": {"path": "q8_0.gguf"}, "f32": {"path": "f32.gguf"}}
    spec = {"models": models, "datasets": {"rows": {"path": "rows.jsonl"}}, "gates": gates}
    (folder / "lmgate.yaml").write_text(json.dumps(spec))
    (folder / "pytest.ini").write_text("[pytest]\n")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    found = json.loads(run(folder, "drill", "--json", "--faults", "round-last,norm,bos-missing,skip"))
    sights = {(each["fault"], each["gate"][:3]): each["sight"] for each in found["findings"]}
    assert sights["round-last", "kl_"] == "caught"
    assert sights["norm", "kl_"] == "caught"
    assert sights["round-last", "ppl"] == "never"
    assert sights["skip", "kl_"] == sights["skip", "ppl"] == "not tried"
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
