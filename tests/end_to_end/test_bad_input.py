"""What cannot be measured is an error that fails the build: one clear sentence each, and no traceback."""

import json
import re
from pathlib import Path

from tests.end_to_end.projects import Project, marked, scale_head

# Test by test: the gate, and what its error must say. tests/engines and tests/data have all there are.
CASES = {
    "folder": ("'./no_such_folder', 'words'", "no_such_folder"),
    "deep_config": ("'./deep_config', 'words'", "config.json: "),
    "deep_row": ("'die', './deep.jsonl'", "deep.jsonl:1: "),
    "pickle": ("'./pickle', 'words'", "pytorch_model.bin"),
    "truncated": ("'./truncated', 'words'", "cannot be loaded"),
    "masked": ("'./masked', 'words'", "architecture BertForMaskedLM"),
    "architecture": ("'./unknown', 'words'", "cannot be loaded"),
    "vocabulary": ("'./vocabulary', 'words'", "token id 79"),
    "adapter": ("'./adapter', 'words'", "PEFT adapter"),
    "foreign_code": ("'foreign_code', 'words'", "org/repo"),
    "nan": ("'nan', 'words'", "NaN log-likelihood of token"),
    "infinite": ("'./infinite', 'words'", "log-likelihood of token"),
    "beyond_context": ("'die', 'words', max_length=64", "max_length: "),
    "stride": ("'die', 'words', stride=33", "stride: "),
    "blank_rows": ("'die', ['', ' ']", "2 rows, all blank"),
    "one_token": ("'die', './one.txt'", "at least 2"),
    "not_json": ("'die', './broken.jsonl'", "broken.jsonl:2: "),
    "long_row": ("'die', './long.csv'", "long.csv:3: expected 2 cells"),
    "cut_number": ("'die', './cut.csv'", "cut.csv:2: two cells look like one number"),
    "twice": ("'die', './twice.csv'", "twice.csv:1: 2 columns are called 'text'"),
    "open_quote": ("'die', './quote.csv'", "quote.csv:4: not CSV"),
    "key_twice": ("'die', './twice.jsonl'", "twice.jsonl:1: 2 columns are called 'text'"),
    "half_a_surrogate": ("'die', './half.jsonl'", "half.jsonl:1: not JSON"),
    "parquet": ("'die', './rows.parquet'", "rows.parquet"),
    "rows": ("'die', [1, 2]", "row 0: "),
    "a_set": ("'die', {'w1 w2'}", "got set"),
    "pointer_weights": ("'./pointer_weights', 'words'", "model.safetensors is a Git LFS pointer"),
    "pointer_tokenizer": ("'./pointer_tokenizer', 'words'", "tokenizer.json is a Git LFS pointer"),
    "pointer_adapter": ("'pointer_adapter', 'words'", "adapter_model.safetensors is a Git LFS pointer"),
    "pointer_table": ("'die', './pointer.parquet'", "pointer.parquet is a Git LFS pointer"),
}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 1318\n".format("4d7a" * 16)
DEEP = "[" * 100_000 + "]" * 100_000


def test_every_bad_input_is_one_clear_error_and_fails_the_build(project: Project, models: Path) -> None:
    _break_models(project, models)
    rows = {"deep.jsonl": f'{{"text": "w1 w2", "a": {DEEP}}}\n', "broken.jsonl": '{"text": "w1 w2"}\n{"text": \n'}
    other = {"one.txt": "w1", "rows.parquet": "PAR1 not really", "pointer.parquet": POINTER}
    tables = {
        "long.csv": "id,text\n1,w1 w2\n2,w1, w2\n",
        "cut.csv": "id,text\n1,000 apples\n",
        "twice.csv": "text,text\nw1,w2\n",
        "quote.csv": 'id,text\n1,"w1\nw2"\n2,"w1" w2\n',
        "twice.jsonl": '{"text": "w1 w2", "text": "w2 w1"}\n',
        "half.jsonl": '{"text": "w1 \\ud83d w2"}\n',
    }
    for name, text in (rows | other | tables).items():
        (project.folder / name).write_text(text)
    gates = {name: f"ppl_max({gate}, limit=60.5)" for name, (gate, _) in CASES.items()}
    project.write(test_bad=marked(**gates, passes="ppl_max('./other_format', 'words', 60.5)"))
    options = ("--lmgate-report", "json:report.json", "-W", "error")
    outcome = project.run(*options, env={"CI": "true"})  # where pytest shows whole lines
    outcome.expect(1, error=len(CASES), passed=1)
    outcome.is_silent_on("Traceback", "INTERNALERROR", "/pytest_lmgate/")
    for name, (_, sentence) in CASES.items():
        shown = re.search(rf"^ERROR test_bad.py::test_{name} - Failed: ppl_max: (.*)$", outcome.out, re.MULTILINE)
        assert shown is not None
        assert sentence in shown[1], name
    verdicts = {gate["test"]: gate["verdict"] for gate in project.report()["gates"]}
    assert verdicts.pop("test_bad.py::test_passes") == "pass"
    assert set(verdicts.values()) == {"error"}
    assert len(project.entries) == 1, "what could not be measured must not be kept"


def _break_models(project: Project, models: Path) -> None:
    def model(name: str, source: str = "die", **config: object) -> Path:
        folder = project.model(name, models / source)
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
        return folder

    (model("deep_config") / "config.json").write_text(f'{{"a": {DEEP}}}')
    pickle = model("pickle") / "model.safetensors"
    pickle.rename(pickle.with_name("pytorch_model.bin"))
    weights = model("truncated") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    model("masked", architectures=["BertForMaskedLM"], model_type="bert")
    model("unknown", architectures=["NoSuchForCausalLM"], model_type="no_such")
    (model("adapter") / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere"}')
    model("foreign_code", auto_map={"AutoModelForCausalLM": "org/repo--modeling.Class"})
    (model("pointer_weights") / "model.safetensors").write_text(POINTER)
    (model("pointer_tokenizer") / "tokenizer.json").write_text(POINTER)
    (model("other_format") / "pytorch_model.bin").write_text(POINTER)
    (project.folder / "pointer_adapter").mkdir()
    (project.folder / "pointer_adapter" / "adapter_config.json").write_text("{}")
    (project.folder / "pointer_adapter" / "adapter_model.safetensors").write_text(POINTER)
    adapted = f"path: {models}/die, adapter: pointer_adapter"
    project.add("models", foreign_code="path: foreign_code, trust_remote_code: true", pointer_adapter=adapted)
    tokenizer = model("vocabulary") / "tokenizer.json"
    data = json.loads(tokenizer.read_text())
    vocabulary = data["model"]["vocab"]
    data["model"]["vocab"] = {word: at + 20 if word.startswith("w") else at for word, at in vocabulary.items()}
    tokenizer.write_text(json.dumps(data))
    scale_head(model("infinite", "sure"), float("inf"))
