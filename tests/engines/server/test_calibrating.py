"""``lmgate calibrate`` as a user runs it, on a server whose answers change from run to run."""

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx2", reason="httpx2 is NOT installed; make test-server runs these tests")

from tests.engines.server.conftest import entry_of
from tests.engines.server.faulty import FaultyServer, first
from tests.warm import warm_python

GATE = "exact_min[served-quiz-max_new_tokens:1]"


def test_a_server_whose_answers_change_is_calibrated_and_the_gate_gets_a_limit_that_holds(
    faulty: FaultyServer, files: Path, tmp_path: Path
) -> None:
    drawn = random.Random(0)

    def flip(_: int, body: Any, answer: Any) -> Any:
        if body.get("max_tokens"):
            first(answer).pop("token_ids", None)
            first(answer)["text"] = "yes" if drawn.random() < 0.8 else "no"
        return answer

    faulty.spoil = flip
    rows = [{"q": f"{row} and", "a": "yes"} for row in range(100)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    served = entry_of(faulty.url, load={"context": 642, "retries": 0, "timeout": 20}).replace("{files}", str(files))
    file = tmp_path / "lmgate.yaml"
    file.write_text(
        f"models:\n  served: {served}\n"
        "datasets:\n  quiz: {path: rows.jsonl, prompt: '{q}', references: a}\n"
        "gates:\n  # ours\n  - exact_min: {model: served, dataset: quiz, limit: 0.8, max_new_tokens: 1}\n"
    )

    def lmgate(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [warm_python({**os.environ, "HF_HUB_OFFLINE": "1"}), "-m", "pytest_lmgate.cli", "calibrate"]
        return subprocess.run([*command, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=300)

    done = lmgate(f"lmgate.yaml::{GATE}", "--runs", "4", "--write", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [run["batch_size"] for run in found["runs"]] == ["auto", 8, 32, 3]
    assert (found["deterministic"], found["holds"], found["as_a_whole"]) == (False, False, False)
    assert found["changed"] == pytest.approx(2 * 0.8 * 0.2, abs=0.08)
    assert found["between_runs"] == pytest.approx(0.04, abs=0.01)
    limit = float(found["holding"].removeprefix("limit "))
    assert 0.6 < limit < 0.76
    before, gate = file.read_text().splitlines()[-2:]
    assert before.startswith("  # lmgate calibrate, 4 runs: an unchanged model fails limit ")
    assert gate == f"  - exact_min: {{model: served, dataset: quiz, limit: {limit}, max_new_tokens: 1}}"
    assert "\n  # ours\n" in file.read_text()

    again = lmgate(GATE, "--runs", "3", "--write")
    assert again.returncode == 0, again.stderr
    assert "written into lmgate.yaml: the reason, since the gate holds" in again.stdout
    assert file.read_text().count("# lmgate calibrate") == 1
    assert gate in file.read_text()

    missing = lmgate("exact_min[served-quiz]")
    assert (missing.returncode, missing.stdout) == (3, "")
    assert (
        f"no gate is called 'exact_min[served-quiz]'; did you mean '{GATE}'?" in missing.stderr
        or GATE in missing.stderr
    )
