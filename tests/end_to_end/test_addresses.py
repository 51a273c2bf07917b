"""What changes a measurement's address, and what does not: no stale hit, and no model run for nothing."""

import json
import os
import shutil
from pathlib import Path

from tests.end_to_end.projects import COUNT_MEASUREMENTS, GATE, Project, marked

# Test by test: the gate, and the ingredient in which it differs from what has been measured. The rest: test_keys.py.
CHANGES = {
    "weights": ("'./weights', 'words'", "model/model.safetensors"),
    "tokenizer": ("'./tokenizer', 'words'", "model/tokenizer.json"),
    "dtype": ("'double', 'words'", "dtype"),
    "data": ("'die', './changed.txt'", "data"),
    "stride": ("'die', 'words', stride=8", "protocol"),
}


def test_whatever_can_change_the_number_is_measured_again_and_named(measured: Project, models: Path) -> None:
    _make_variants(measured, models)
    measured.write(
        conftest=COUNT_MEASUREMENTS,
        test_changed=marked(**{name: f"ppl_max({gate}, limit=1e9)" for name, (gate, _) in CHANGES.items()}),
        test_same=GATE,
    )
    outcome = measured.with_torch.run("--lmgate-explain-cache", "--lmgate-report", "json:report.json")
    outcome.expect(0, passed=len(CHANGES) + 1)
    lines = {line.split("::")[1]: line for line in outcome.out.splitlines() if line.startswith("cache test_")}
    for name, (_, ingredient) in CHANGES.items():
        explanation = lines[f"test_{name}"].partition(": miss, ")[2]
        assert f"{ingredient}: " in explanation, f"{name}: expected {ingredient} in {lines[f'test_{name}']}"
        assert explanation.count(" -> ") == 1 + explanation.count("(none) -> "), "one ingredient differs, and no other"
    assert lines["test_gate"].endswith("]: hit")
    assert [gate["cached"] for gate in measured.report()["gates"]] == [False] * len(CHANGES) + [True]
    assert len(measured.measured) == len(CHANGES)
    # And all of it is found again.
    measured.run("--lmgate-report", "json:report.json").expect(0, passed=len(CHANGES) + 1)
    assert all(gate["cached"] for gate in measured.report()["gates"])
    assert len(measured.measured) == len(CHANGES)


def test_what_cannot_change_the_number_runs_no_model(measured: Project, models: Path) -> None:
    moved = measured.model("moved", models / "die")
    (moved / "README.md").write_text("# A die")
    (moved / "training.log").write_text("loss 4.09")
    os.utime(moved / "model.safetensors", (1, 1))
    shutil.copy(models / "words.txt", measured.folder / "copied.txt")
    measured.write(
        lmgate_yaml="""
            models:
              renamed: {path: moved, batch_size: 3}
            datasets:
              renamed: {path: copied.txt}
        """,
        test_same=marked(
            limit='ppl_max("renamed", "renamed", 60.5)',
            unit='ppl_max("renamed", "renamed", 61, unit="word", stride=16, max_length=32)',
            average='ppl_max("./moved", "./copied.txt", 62, average="window", allow_beyond_context=True)',
            bits='bpb_max("renamed", "./copied.txt", 9)',
        ),
        conftest=COUNT_MEASUREMENTS,
    )
    measured.run("--lmgate-report", "json:report.json").expect(0, passed=4)
    assert all(gate["cached"] for gate in measured.report()["gates"])
    assert measured.measured == []


def _make_variants(project: Project, models: Path) -> None:
    weights = project.model("weights", models / "die") / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-2] ^= 1
    weights.write_bytes(data)
    tokenizer = project.model("tokenizer", models / "die") / "tokenizer.json"
    tokens = json.loads(tokenizer.read_text())
    vocabulary = tokens["model"]["vocab"]
    vocabulary["w1"], vocabulary["w2"] = vocabulary["w2"], vocabulary["w1"]
    tokenizer.write_text(json.dumps(tokens))
    words = (models / "words.txt").read_text()
    (project.folder / "changed.txt").write_text(words + " w1")
    project.add("models", double=f"path: {models}/die, dtype: float64")
