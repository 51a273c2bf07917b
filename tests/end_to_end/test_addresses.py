"""What changes a measurement's address: no stale hit."""

from pathlib import Path

from tests.end_to_end.projects import COUNT_MEASUREMENTS, GATE, Project, marked

# Test by test: the gate, and the ingredient in which it differs from what has been measured. The rest: test_keys.py.
CHANGES = {
    "weights": ("'./weights', 'words'", "model/model.safetensors"),
    "dtype": ("'double', 'words'", "dtype"),
    "data": ("'die', './changed.txt'", "data"),
    "stride": ("'die', 'words', stride=8", "protocol"),
}


def test_whatever_can_change_the_number_is_measured_again_and_named(measured: Project, models: Path) -> None:
    weights = measured.model("weights", models / "die") / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-2] ^= 1
    weights.write_bytes(data)
    (measured.folder / "changed.txt").write_text((models / "words.txt").read_text() + " w1")
    measured.add("models", double=f"path: {models}/die, dtype: float64")
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
    measured.run("--lmgate-report", "json:report.json").expect(0, passed=len(CHANGES) + 1)
    assert all(gate["cached"] for gate in measured.report()["gates"]), "all of it is found again"
