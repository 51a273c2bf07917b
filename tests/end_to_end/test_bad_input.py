"""What cannot be measured is an error that fails the build: one clear sentence each, and no traceback."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from tests.end_to_end.projects import GATE, Project

# Test by test: the gate, and what its error must say.
CASES = {
    "folder": ("'./no_such_folder', 'words'", "no such folder"),
    "no_config": ("'./no_config', 'words'", "no config.json in"),
    "broken_config": ("'./broken_config', 'words'", "config.json: not JSON"),
    "deep_config": ("'./deep_config', 'words'", "config.json: nested too deeply"),
    "deep_row": ("'die', './deep.jsonl'", "deep.jsonl:1: nested too deeply"),
    "no_weights": ("'./no_weights', 'words'", "no weights in"),
    "pickle": ("'./pickle', 'words'", "has its weights only as pickle (pytorch_model.bin)"),
    "truncated": ("'./truncated', 'words'", "cannot be loaded"),
    "masked": (
        "'./masked', 'words'",
        "ppl is undefined for the masked model './masked' (architecture BertForMaskedLM)",
    ),
    "encoder_decoder": (
        "'./encoder_decoder', 'words'",
        "ppl of the encoder-decoder model './encoder_decoder' measures a reference",
    ),
    "architecture": ("'./unknown', 'words'", "cannot be loaded"),
    "no_tokenizer": ("'./no_tokenizer', 'words'", "no tokenizer in"),
    "vocabulary": ("'./vocabulary', 'words'", "gives token id 79, but"),
    "lacking": ("'./lacking', 'words'", "lacks weights that LlamaForCausalLM needs: lm_head.weight"),
    "adapter": ("'./adapter', 'words'", "holds a PEFT adapter: put its folder under adapter:"),
    "foreign_code": ("'foreign_code', 'words'", "takes its code from another repository, org/repo"),
    "nan": ("'nan', 'words'", "NaN log-likelihood of token"),
    "infinite": ("'./infinite', 'words'", "log-likelihood of token"),
    "beyond_context": ("'die', 'words', max_length=64", "longer than the context of the model 'die', 32 tokens"),
    "stride": ("'die', 'words', stride=33", "stride: at most max_length=32"),
    "empty": ("'die', './empty.txt'", "expected text, got none"),
    "blank": ("'die', './blank.txt'", "expected text, got none (1 rows, all blank)"),
    "blank_rows": ("'die', ['', ' ']", "expected text, got none (2 rows, all blank)"),
    "one_token": ("'die', './one.txt'", "1 token, but protocol 'sliding' needs at least 2"),
    "not_utf8": ("'die', './latin.txt'", "not UTF-8 at byte 3 (0xe9)"),
    "no_file": ("'die', './no_such.txt'", "no such file or folder"),
    "column": ("'die', './rows.jsonl'", "no column 'text' (did you mean 'texts'?)"),
    "number": ("'die', './numbers.jsonl'", "column 'text': expected text, got int"),
    "not_json": ("'die', './broken.jsonl'", "broken.jsonl:2: not JSON"),
    "csv_column": ("'die', './rows.csv'", "no column 'text'"),
    "parquet": ("'die', './rows.parquet'", "not a parquet file"),
    "suffix": ("'die', './rows.xyz'", "expected a file ending in .txt"),
    "folder_data": ("'die', './no_weights'", "not a folder saved by datasets"),
    "rows": ("'die', [1, 2]", "row 0: expected text or a mapping, got int"),
    "a_set": ("'die', {'w1 w2'}", "a list of texts, got set, whose order changes"),
    "columns": ("'die', {'text': ['w1 w2']}", "a list of texts, got dict; give one of its splits, or a list of rows"),
    "undecoded": ("'die', b'w1 w2'", "a list of texts, got bytes; decode it"),
}


def test_every_bad_input_is_one_clear_error_and_fails_the_build(project: Project, models: Path) -> None:
    _break_models(project, models)
    _break_datasets(project.folder)
    named = (project.folder / "lmgate.yaml").read_text()
    project.write(
        lmgate_yaml=named.replace("models:", "models:\n  foreign_code: {path: foreign_code, trust_remote_code: true}"),
        test_bad="\n\n".join(
            ["import pytest"]
            + [
                f"@pytest.mark.ppl_max({gate}, limit=60.5)\ndef test_{name}(): pass"
                for name, (gate, _) in CASES.items()
            ]
        ),
    )
    options = ("--lmgate-report", "json:report.json", "-W", "error")
    outcome = project.run(*options, env={"CI": "true"}).expect(1, error=len(CASES))  # pytest shows whole lines there
    outcome.is_silent_on("Traceback", "INTERNALERROR", "/pytest_lmgate/")
    sections = dict(part.split(" ", 1) for part in outcome.out.split("ERROR at setup of test_")[1:])
    for name, (_, sentence) in CASES.items():
        said = sections[name]
        assert sentence in said, f"{name}: expected {sentence!r} in\n{said}"
        assert "could not be measured" in said
        shown = re.search(rf"^ERROR test_bad.py::test_{name} - Failed: ppl_max: (.*)$", outcome.out, re.MULTILINE)
        assert shown is not None
        assert sentence.partition("\n")[0] in shown[1]
    assert {gate["verdict"] for gate in project.report()["gates"]} == {"error"}
    assert not project.entries, "what could not be measured must not be kept"


def test_an_error_of_a_gate_is_an_error_of_the_fixture_too(project: Project) -> None:
    named = (project.folder / "lmgate.yaml").read_text()
    project.write(
        lmgate_yaml=named.replace("models:", "models:\n  foreign_code: {path: foreign_code, trust_remote_code: true}"),
        test_bad="""
            def test_missing(ppl_of):
                assert ppl_of("./no_such_folder", "words") < 1e9

            def test_data(ppl_of):
                assert ppl_of("die", "./no_such.txt") < 1e9
        """,
    )
    project.run().expect(1, failed=2).says("no such folder", "no such file or folder").is_silent_on("/pytest_lmgate/")


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "xpu"])
def test_a_device_that_is_not_there_is_one_sentence(project: Project, device: str) -> None:
    if device.startswith("cuda") and torch.cuda.device_count() > (device == "cuda:1"):
        pytest.skip("this machine has that device")
    project.write(test_gate=GATE, test_fixture="def test_score(ppl_of): assert ppl_of('die', 'words') < 61")
    outcome = project.run("--lmgate-device", device).expect(1, error=1, failed=1)
    assert outcome.text.count(f"model 'die': the device {device!r} cannot be used on this machine: ") == 4
    outcome.says("; say device: cpu, or --lmgate-device cpu").is_silent_on("/torch/", "pytest_lmgate/")
    assert len(outcome.out.splitlines()) < 50


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 1318\n".format("4d7a" * 16)
# What is replaced by a pointer, and the model and dataset that are then measured.
POINTERS = {
    "weights": ("weights/model.safetensors", "'./weights', 'words'"),
    "config": ("config/config.json", "'./config', 'words'"),
    "tokenizer": ("tokenizer/tokenizer.json", "'./tokenizer', 'words'"),
    "adapter": ("adapter/adapter_model.safetensors", "'adapted', 'words'"),
    "text": ("text.txt", "'die', './text.txt'"),
    "rows": ("rows.jsonl", "'die', './rows.jsonl'"),
    "table": ("table.parquet", "'die', './table.parquet'"),
}


def test_a_git_lfs_pointer_is_refused_and_told_how_to_fetch(project: Project, models: Path) -> None:
    for name in ("weights", "config", "tokenizer", "other_format"):
        project.model(name, models / "die")
    (project.folder / "adapter").mkdir()
    (project.folder / "adapter" / "adapter_config.json").write_text("{}")
    for file in ("other_format/pytorch_model.bin", *(file for file, _ in POINTERS.values())):
        (project.folder / file).write_text(POINTER)
    named = (project.folder / "lmgate.yaml").read_text()
    tests = [
        f"@pytest.mark.ppl_max({gate}, limit=1e9)\ndef test_{name}(): pass" for name, (_, gate) in POINTERS.items()
    ]
    tests.append("@pytest.mark.ppl_max('./other_format', 'words', 1e9)\ndef test_other_format(): pass")
    project.write(
        lmgate_yaml=named.replace("models:", f"models:\n  adapted: {{path: {models}/die, adapter: adapter}}"),
        test_pointers="\n\n".join(["import pytest", *tests]),
    )
    outcome = project.run().expect(1, error=len(POINTERS), passed=1)
    sections = dict(part.split(" ", 1) for part in outcome.out.split("ERROR at setup of test_")[1:])
    for name, (file, _) in POINTERS.items():
        sentence = f"{project.folder / file} is a Git LFS pointer, not the file itself: run git lfs pull"
        assert sentence in sections[name], sections[name]


# Test by test: the marker, and what is said of it before any model is touched.
AT_COLLECTION = {
    "text": ("ppl_max('die', 'It rained. ' * 600, 60.5)", "got 6,600 characters that begin 'It rained. It rained. It "),
    "lines": (
        "ppl_max('die', 'w1 w2\\nw3', 60.5)",
        "got 8 characters that begin 'w1 w2\\nw3'; put texts in a list: [text]",
    ),
    "words": ("ppl_max('die', 'w1 w2 w3', 60.5)", "dataset 'w1 w2 w3' is not known"),
    "long_path": (
        "ppl_max('./' + 'x' * 5000, 'words', 60.5)",
        "model: expected a name of lmgate.yaml, a path or a hub",
    ),
    "suffix": ("ppl_max('die', 'words.v2', 60.5)", "dataset 'words.v2' is not known (did you mean 'words'?)"),
    "below": ("ppl_max('die', 'data/wrods', 60.5)", "dataset 'data/wrods': there is no wrods in "),
    "model_below": ("ppl_max('data/int8', 'words', 60.5)", "model 'data/int8': there is no int8 in "),
    "huge": ("no_regression('ppl', 'die', 'words', 10**400)", "tolerance: expected a finite size, got a whole number"),
    "percent": ("no_regression('ppl', 'die', 'words', '9' * 400 + '%')", "tolerance: expected a finite percentage"),
    "metric": (
        "no_regression('perplexity', 'die', 'words', '1%')",
        "got 'perplexity' (did you mean 'ppl'?); registered",
    ),
}


def test_what_cannot_be_is_said_at_collection_in_one_line_each(project: Project) -> None:
    (project.folder / "data").mkdir()
    gates = [f"@pytest.mark.{gate}\ndef test_{name}(): pass" for name, (gate, _) in AT_COLLECTION.items()]
    project.write(test_bad="\n\n".join(["import pytest", *gates]))
    outcome = project.run().expect(4).is_silent_on("Traceback", "INTERNALERROR", "/pytest_lmgate/")
    lines = {line.split("::test_")[1].split(":")[0]: line for line in outcome.err.splitlines() if "::test_" in line}
    for name, (_, sentence) in AT_COLLECTION.items():
        assert sentence in lines[name], f"{name}: expected {sentence!r} in {lines[name]!r}"


def _break_models(project: Project, models: Path) -> None:
    def model(name: str, source: str = "die", **config: object) -> Path:
        folder = project.model(name, models / source)
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
        return folder

    (model("no_config") / "config.json").unlink()
    (model("broken_config") / "config.json").write_text("{")
    (model("deep_config") / "config.json").write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")
    (model("no_weights") / "model.safetensors").unlink()
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
    _rename_tokens(model("vocabulary") / "tokenizer.json")
    _rewrite_head(model("lacking"), keep=False, factor=1.0)
    _rewrite_head(model("infinite", "sure"), keep=True, factor=float("inf"))


def _rename_tokens(tokenizer: Path) -> None:
    data = json.loads(tokenizer.read_text())
    data["model"]["vocab"] = {
        word: index + 20 if word.startswith("w") else index for word, index in data["model"]["vocab"].items()
    }
    tokenizer.write_text(json.dumps(data))


def _rewrite_head(folder: Path, *, keep: bool, factor: float) -> None:
    from safetensors.numpy import load_file, save_file

    file = folder / "model.safetensors"
    weights = load_file(file)
    head = weights.pop("lm_head.weight")
    save_file(
        {**weights, "lm_head.weight": head * head.dtype.type(factor)} if keep else weights, file, {"format": "pt"}
    )


def _break_datasets(folder: Path) -> None:
    for name, data in {
        "empty.txt": b"",
        "blank.txt": b" \n\n ",
        "one.txt": b"w1",
        "latin.txt": b"caf\xe9",
        "rows.jsonl": b'{"texts": "w1 w2 w3"}\n',
        "numbers.jsonl": b'{"text": 3}\n',
        "broken.jsonl": b'{"text": "w1 w2"}\n{"text": \n',
        "deep.jsonl": b'{"text": "w1 w2", "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        "rows.csv": b"body,id\nw1 w2,3\n",
        "rows.parquet": b"PAR1 not really",
        "rows.xyz": b"w1 w2",
    }.items():
        (folder / name).write_bytes(data)
