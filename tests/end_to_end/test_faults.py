"""Faults: what cannot be measured is one clear error; kills, damaged entries and two processes at once cost nothing."""

import json
import os
import re
import signal
from pathlib import Path

from tests.end_to_end.dice import DiceProject
from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project, finished, marked, scale_head, wait_for

ALL_THREE = """
    def test_scores(ppl_of):
        assert ppl_of("die", "words") < ppl_of("sure", "words") < ppl_of("hopeless", "words")
"""


def test_entries_that_cannot_be_trusted_are_set_aside_warned_of_and_measured_again(measured: Project) -> None:
    measured.write(conftest=COUNT_MEASUREMENTS, test_scores=ALL_THREE)
    before = {path.name: path.read_bytes() for path in measured.entries}
    truncated, flipped, foreign = measured.entries
    truncated.write_bytes(truncated.read_bytes()[:-1])
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 4
    flipped.write_bytes(data)
    foreign.write_bytes(before[truncated.name])  # whole and sealed, but another measurement's
    foreign.with_suffix(".partial").write_bytes(b"LMGATE1\nnot an entry")

    outcome = measured.with_torch.run().expect(0, passed=1).says("checksum", "another measurement")
    assert outcome.out.count("a cache entry cannot be trusted") >= 3
    assert sorted(measured.measured) == ["die", "hopeless", "sure"]
    aside = {path.name for path in measured.cache.glob("set-aside/*")}
    assert {truncated.name, flipped.name, foreign.name} <= aside
    # The second run is as if nothing had happened.
    measured.run("-W", "error").expect(0, passed=1).is_silent_on("trusted")
    assert len(measured.measured) == 3


def test_a_process_that_waits_takes_over_from_one_that_is_killed(dice: DiceProject) -> None:
    dice.models(red={"held_after": 1}).gates([("red", "one")])
    hold = dice.folder / "hold.txt"
    hold.touch()
    holder = dice.start(fresh=False)
    wait_for(lambda: dice.partials, "the first process measures")
    waiter = dice.start("-s", fresh=False)
    assert waiter.stdout is not None
    wait_for(lambda: "waiting for it" in waiter.stdout.readline(), "the second process waits for the first")
    os.killpg(holder.pid, signal.SIGKILL)
    assert finished(holder).code == -signal.SIGKILL
    hold.unlink()
    finished(waiter).expect(0, passed=1)
    assert dice.loaded == ["red", "red"]


def test_offline_says_what_is_missing_and_asks_no_network(project: Project) -> None:
    project.write(
        conftest="""
            import pathlib, socket

            def noted(*args, **kwargs):
                pathlib.Path(__file__).with_name("network.txt").write_text(repr(args))
                raise OSError("no network in this test")

            socket.socket.connect = socket.create_connection = socket.getaddrinfo = noted
        """,
        test_hub=marked(
            model='ppl_max("hub:no-such-org/no-such-model@v1", "words", 60)',
            dataset='ppl_max("die", "hub:no-such-org/no-such-data", 60)',
            local='ppl_max("die", "words", 60.5)',
        ),
    )
    empty = {"HF_HOME": str(project.folder / "hub")}
    outcome = project.run("--lmgate-offline", env=empty).expect(1, error=2, passed=1)
    outcome.says("model 'hub:no-such-org/no-such-model@v1'", "dataset 'hub:no-such-org/no-such-data'")
    outcome.says("--lmgate-offline").is_silent_on("Traceback")
    assert not (project.folder / "network.txt").exists()


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
    "adapter_alone": ("'./pointer_adapter', 'words'", "PEFT adapter"),
    "foreign_code": ("'foreign_code', 'words'", "org/repo"),
    "nan": ("'nan', 'words'", "NaN log-likelihood of token"),
    "infinite": ("'./infinite', 'words'", "log-likelihood of token"),
    "one_token": ("'die', './one.txt'", "at least 2"),
    "not_json": ("'die', './broken.jsonl'", "broken.jsonl:2: "),
    "half_a_surrogate": ("'die', './half.jsonl'", "half.jsonl:1: not JSON"),
    "parquet": ("'die', './rows.parquet'", "rows.parquet"),
    "pointer_weights": ("'./pointer_weights', 'words'", "model.safetensors is a Git LFS pointer"),
    "pointer_tokenizer": ("'./pointer_tokenizer', 'words'", "tokenizer.json is a Git LFS pointer"),
    "pointer_adapter": ("'pointer_adapter', 'words'", "adapter_model.safetensors is a Git LFS pointer"),
    "pointer_table": ("'die', './pointer.parquet'", "pointer.parquet is a Git LFS pointer"),
}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 1318\n".format("4d7a" * 16)
DEEP = "[" * 100_000 + "]" * 100_000


def test_every_bad_input_is_one_clear_error_and_fails_the_build(project: Project, models: Path) -> None:
    _break_models(project, models)
    data = {
        "deep.jsonl": f'{{"text": "w1 w2", "a": {DEEP}}}\n',
        "broken.jsonl": '{"text": "w1 w2"}\n{"text": \n',
        "half.jsonl": '{"text": "w1 \\ud83d w2"}\n',
        "one.txt": "w1",
        "rows.parquet": "PAR1 not really",
        "pointer.parquet": POINTER,
    }
    for name, text in data.items():
        (project.folder / name).write_text(text)
    gates = {name: f"ppl_max({gate}, limit=60.5)" for name, (gate, _) in CASES.items()}
    project.write(test_bad=marked(**gates, passes="ppl_max('./other_format', 'words', 60.5)"))
    in_ci = {"CI": "true"}  # where pytest shows whole lines
    outcome = project.run("--lmgate-report", "json:report.json", "-W", "error", env=in_ci)
    outcome.expect(1, error=len(CASES), passed=1)
    outcome.is_silent_on("Traceback", "INTERNALERROR", "/pytest_lmgate/")
    for name, (_, sentence) in CASES.items():
        shown = re.search(rf"^ERROR test_bad.py::test_{name} - Failed: ppl_max: (.*)$", outcome.out, re.MULTILINE)
        assert shown is not None
        assert sentence in shown[1], name
    assert [gate["verdict"] for gate in project.report()["gates"]] == ["error"] * len(CASES) + ["pass"]
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
