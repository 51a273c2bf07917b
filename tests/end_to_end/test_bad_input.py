"""What cannot be measured is an error that fails the build: one clear sentence each, and no traceback."""

import json
import re
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.end_to_end.projects import GATE, Project, marked

# Test by test: the gate, and what its error must say.
CASES = {
    "folder": ("'./no_such_folder', 'words'", "no_such_folder"),
    "no_config": ("'./no_config', 'words'", "no config.json in"),
    "deep_config": ("'./deep_config', 'words'", "config.json: "),
    "deep_row": ("'die', './deep.jsonl'", "deep.jsonl:1: "),
    "pickle": ("'./pickle', 'words'", "pytorch_model.bin"),
    "truncated": ("'./truncated', 'words'", "cannot be loaded"),
    "masked": ("'./masked', 'words'", "architecture BertForMaskedLM"),
    "encoder_decoder": ("'./encoder_decoder', 'words'", "encoder-decoder model './encoder_decoder'"),
    "architecture": ("'./unknown', 'words'", "cannot be loaded"),
    "no_tokenizer": ("'./no_tokenizer', 'words'", "no tokenizer in"),
    "vocabulary": ("'./vocabulary', 'words'", "token id 79"),
    "lacking": ("'./lacking', 'words'", "lm_head.weight"),
    "adapter": ("'./adapter', 'words'", "PEFT adapter"),
    "unused_weights": ("'./unused_weights', 'words'", "does not use, 1 in all: model.layers.0.self_attn.q_proj.bias"),
    "unused_adapter": (
        "'unused_adapter', 'words'",
        "does not apply, 2 in all: base_model.model.lm_head.lora_A.weight" if find_spec("peft") else "needs PEFT",
    ),
    "unused_key": ("'./unused_key', 'words'", "'rope_scaling.beta_fst' (did you mean 'beta_fast'?)"),
    "unused_option": ("'unused_option', 'words'", "has no option 'bnb_4bit_quant_typ' (did you mean "),
    "unused_tokenizer_option": ("'unused_tokenizer_option', 'words'", "tokenizer.add_bos_tokn: "),
    "not_quantized": (
        "'./not_quantized', 'words'",
        "has a quantization_config (fp8)" if find_spec("accelerate") else "requires accelerate",
    ),
    "two_sets": ("'./two_sets', 'words'", "holds two sets of weights, model.safetensors and "),
    "foreign_code": ("'foreign_code', 'words'", "org/repo"),
    "nan": ("'nan', 'words'", "NaN log-likelihood of token"),
    "infinite": ("'./infinite', 'words'", "log-likelihood of token"),
    "beyond_context": ("'die', 'words', max_length=64", "max_length: "),
    "stride": ("'die', 'words', stride=33", "stride: "),
    "blank": ("'die', './blank.txt'", "1 rows, all blank"),
    "blank_rows": ("'die', ['', ' ']", "2 rows, all blank"),
    "one_token": ("'die', './one.txt'", "at least 2"),
    "not_utf8": ("'die', './latin.txt'", "not UTF-8 at byte 3"),
    "column": ("'die', './rows.jsonl'", "'texts'"),
    "not_json": ("'die', './broken.jsonl'", "broken.jsonl:2: "),
    "shifted": ("'die', './shifted.csv'", "shifted.csv:3: expected 2 cells"),
    "twice": ("'die', './twice.csv'", "2 columns are called 'text'"),
    "parquet": ("'die', './rows.parquet'", "rows.parquet"),
    "rows": ("'die', [1, 2]", "row 0: "),
    "a_set": ("'die', {'w1 w2'}", "got set"),
    "pointer_weights": ("'./pointer_weights', 'words'", "model.safetensors is a Git LFS pointer"),
    "pointer_tokenizer": ("'./pointer_tokenizer', 'words'", "tokenizer.json is a Git LFS pointer"),
    "pointer_adapter": ("'pointer_adapter', 'words'", "adapter_model.safetensors is a Git LFS pointer"),
    "pointer_text": (
        "'die', './pointer.txt'",
        "pointer.txt is a Git LFS pointer, not the file itself: run git lfs pull",
    ),
    "pointer_table": ("'die', './pointer.parquet'", "pointer.parquet is a Git LFS pointer"),
}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 1318\n".format("4d7a" * 16)


def test_every_bad_input_is_one_clear_error_and_fails_the_build(project: Project, models: Path) -> None:
    _break_models(project, models)
    _break_datasets(project.folder)
    foreign = "path: foreign_code, trust_remote_code: true"
    project.add(
        "models",
        foreign_code=foreign,
        pointer_adapter=f"path: {models}/die, adapter: pointer_adapter",
        unused_adapter=f"path: {models}/die, adapter: unused_adapter",
        unused_option=f"path: {models}/die, load: {{quantization_config: "
        "{load_in_4bit: true, bnb_4bit_quant_typ: nf4}}",
        unused_tokenizer_option=f"path: {models}/die, tokenizer: {{add_bos_tokn: true}}",
    )
    gates = {name: f"ppl_max({gate}, limit=60.5)" for name, (gate, _) in CASES.items()}
    project.write(test_bad=marked(**gates, passes="ppl_max('./other_format', 'words', 60.5)"))
    options = ("--lmgate-report", "json:report.json", "-W", "error")
    outcome = project.run(*options, env={"CI": "true"}).expect(
        1, error=len(CASES), passed=1
    )  # pytest shows whole lines there
    outcome.is_silent_on("Traceback", "INTERNALERROR", "/pytest_lmgate/")
    sections = dict(part.split(" ", 1) for part in outcome.out.split("ERROR at setup of test_")[1:])
    for name, (_, sentence) in CASES.items():
        assert sentence in sections[name], f"{name}: expected {sentence!r} in\n{sections[name]}"
        shown = re.search(rf"^ERROR test_bad.py::test_{name} - Failed: ppl_max: (.*)$", outcome.out, re.MULTILINE)
        assert shown is not None
        assert sentence.partition("\n")[0] in shown[1]
    verdicts = {gate["test"]: gate["verdict"] for gate in project.report()["gates"]}
    assert verdicts.pop("test_bad.py::test_passes") == "pass"
    assert set(verdicts.values()) == {"error"}
    assert len(project.entries) == 1, "what could not be measured must not be kept"


def test_a_device_that_is_not_there_is_one_sentence(project: Project) -> None:
    device = f"cuda:{torch.cuda.device_count()}"
    project.write(test_gate=GATE, test_fixture="def test_score(ppl_of): assert ppl_of('die', 'words') < 61")
    outcome = project.run("--lmgate-device", device).expect(1, error=1, failed=1)
    assert outcome.text.count(f"model 'die': the device {device!r} cannot be used") == 4
    outcome.is_silent_on("/torch/", "pytest_lmgate/")
    assert len(outcome.out.splitlines()) < 50


def _break_models(project: Project, models: Path) -> None:
    def model(name: str, source: str = "die", **config: object) -> Path:
        folder = project.model(name, models / source)
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
        return folder

    (model("no_config") / "config.json").unlink()
    (model("deep_config") / "config.json").write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")
    pickle = model("pickle") / "model.safetensors"
    pickle.rename(pickle.with_name("pytorch_model.bin"))
    weights = model("truncated") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    model("masked", architectures=["BertForMaskedLM"], model_type="bert")
    model("encoder_decoder", architectures=["T5ForConditionalGeneration"], model_type="t5", is_encoder_decoder=True)
    model("unknown", architectures=["NoSuchForCausalLM"], model_type="no_such")
    for file in model("no_tokenizer").glob("tokenizer*"):
        file.unlink()
    (model("adapter") / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere"}')
    model("foreign_code", auto_map={"AutoModelForCausalLM": "org/repo--modeling.Class"})
    for name, file in {
        "weights": "model.safetensors",
        "tokenizer": "tokenizer.json",
        "format": "pytorch_model.bin",
    }.items():
        folder = model("other_format" if name == "format" else f"pointer_{name}")
        (folder / file).write_text(POINTER)
    (project.folder / "pointer_adapter").mkdir()
    (project.folder / "pointer_adapter" / "adapter_config.json").write_text("{}")
    (project.folder / "pointer_adapter" / "adapter_model.safetensors").write_text(POINTER)
    _rename_tokens(model("vocabulary") / "tokenizer.json")
    _rewrite(model("lacking"), lambda weights: weights.pop("lm_head.weight"))
    _rewrite(model("infinite", "sure"), lambda weights: weights["lm_head.weight"].mul_(float("inf")))
    bias = {"model.layers.0.self_attn.q_proj.bias": torch.ones(16)}
    _rewrite(model("unused_weights"), lambda weights: weights.update(bias))
    model("unused_key", rope_scaling={"rope_type": "yarn", "factor": 2.0, "beta_fst": 30.0})
    _rewrite(model("not_quantized", quantization_config=FP8), _quantize)
    _shard(model("two_sets"))
    (project.folder / "unused_adapter").mkdir()
    adapter = {"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"]}
    (project.folder / "unused_adapter" / "adapter_config.json").write_text(json.dumps(adapter))
    halves = {"A": torch.ones(2, 16), "B": torch.ones(60, 2)}
    named = {f"base_model.model.lm_head.lora_{half}.weight": values for half, values in halves.items()}
    save_file(named, project.folder / "unused_adapter" / "adapter_model.safetensors")


def _rename_tokens(tokenizer: Path) -> None:
    data = json.loads(tokenizer.read_text())
    data["model"]["vocab"] = {
        word: index + 20 if word.startswith("w") else index for word, index in data["model"]["vocab"].items()
    }
    tokenizer.write_text(json.dumps(data))


FP8 = {"quant_method": "fp8", "weight_block_size": [4, 4], "modules_to_not_convert": ["lm_head"]}


def _rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _quantize(weights: dict[str, torch.Tensor]) -> None:
    for name in [name for name in weights if name.endswith("proj.weight")]:
        rows, columns = weights[name].shape
        weights[name] = weights[name].to(torch.float8_e4m3fn)
        weights[f"{name}_scale_inv"] = torch.ones(rows // 4, columns // 4)


def _shard(folder: Path) -> None:
    """Save the model a second time beside the first, with an index."""
    shard = folder / "model-00001-of-00001.safetensors"
    shutil.copy(folder / "model.safetensors", shard)
    index = {"weight_map": dict.fromkeys(load_file(shard), shard.name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _break_datasets(folder: Path) -> None:
    for name, data in {
        "blank.txt": b" \n\n ",
        "one.txt": b"w1",
        "latin.txt": b"caf\xe9",
        "rows.jsonl": b'{"texts": "w1 w2 w3"}\n',
        "broken.jsonl": b'{"text": "w1 w2"}\n{"text": \n',
        "deep.jsonl": b'{"text": "w1 w2", "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        "shifted.csv": b"id,text\n1,w1 w2\n2,w1, w2\n",
        "twice.csv": b"text,text\nw1 w2,w3\n",
        "rows.parquet": b"PAR1 not really",
        "pointer.txt": POINTER.encode(),
        "pointer.parquet": POINTER.encode(),
    }.items():
        (folder / name).write_bytes(data)
