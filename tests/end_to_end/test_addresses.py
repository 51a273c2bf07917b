"""What changes a measurement's address, and what does not: no stale hit, and no model run for nothing."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

from tests.end_to_end.forging import forge
from tests.end_to_end.projects import COUNT_MEASUREMENTS, GATE, Project

# Test by test: the gate, and the ingredient in which it differs from what has been measured.
CHANGES = {
    "weights": ("'./weights', 'words'", "model/model.safetensors"),
    "config": ("'./config', 'words'", "model/config.json"),
    "tokenizer": ("'./tokenizer', 'words'", "model/tokenizer.json"),
    "dtype": ("'double', 'words'", "dtype"),
    "load": ("'eager', 'words'", "load"),
    "data": ("'die', './changed.txt'", "data"),
    "join": ("'die', 'joined'", "data"),
    "rows": ("'die', 'first_row'", "data"),
    "stride": ("'die', 'words', stride=8", "protocol"),
    "max_length": ("'die', 'words', max_length=16", "protocol"),
    "protocol": ("'die', 'words', protocol='lm-eval'", "protocol"),
}


def test_whatever_can_change_the_number_is_measured_again_and_named(measured: Project, models: Path) -> None:
    _make_variants(measured, models)
    measured.write(
        conftest=COUNT_MEASUREMENTS,
        test_changed="import pytest\n\n"
        + "\n\n".join(
            f"@pytest.mark.ppl_max({gate}, limit=1e9)\ndef test_{name}(): pass" for name, (gate, _) in CHANGES.items()
        ),
        test_same=GATE,
    )
    outcome = measured.run("--lmgate-explain-cache", "--lmgate-report", "json:report.json")
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


def test_a_shard_in_an_inner_folder_is_weights_too(project: Project, models: Path) -> None:
    _shard(project.model("sharded", models / "die"))
    project.write(
        test_shard="""
            import pathlib

            def test_shard(ppl_of):
                before = ppl_of("./sharded", "words")
                shard = pathlib.Path(__file__).with_name("sharded") / "inner" / "head.safetensors"
                data = bytearray(shard.read_bytes())
                data[-3:] = b"\\x80\\x80\\x3f"
                shard.write_bytes(data)
                after = ppl_of("./sharded", "words")
                assert not after.cached and after != before
        """
    )
    project.run().expect(0, passed=1)


def test_weights_that_config_json_names_in_an_inner_folder_are_hashed(project: Project, models: Path) -> None:
    folder = project.model("named", models / "die")
    (folder / "w").mkdir()
    (folder / "model.safetensors").rename(folder / "w" / "v.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "transformers_weights": "w/v.safetensors"}))
    # A loader that knows this key reads it; another one reads this file beside it.
    shutil.copy(models / "hopeless" / "model.safetensors", folder / "model.safetensors")
    project.write(
        test_named="""
            import os

            def test_named(ppl_of):
                score = ppl_of("./named", "words")
                assert not score.cached
        """
    )
    project.run().expect(0, passed=1)
    shutil.copy(models / "sure" / "model.safetensors", folder / "w" / "v.safetensors")
    project.run().expect(0, passed=1)


REPLACES = """
    import importlib.abc
    import os
    import sys
    from pathlib import Path

    HERE = Path(__file__).parent

    class Replace(importlib.abc.MetaPathFinder):
        done = False

        def find_spec(self, name, path, target=None):
            if name == "torch" and not self.done:
                self.done = True
                (HERE / "new.safetensors").replace(HERE / "copy" / "model.safetensors")
            return None

    sys.meta_path.insert(0, Replace())
"""


def test_weights_that_are_replaced_while_torch_is_imported_are_not_kept_as_the_old_ones(
    project: Project, models: Path
) -> None:
    weights = project.model("copy", models / "die") / "model.safetensors"
    shutil.copy(models / "sure" / "model.safetensors", project.folder / "new.safetensors")
    project.write(
        conftest=REPLACES,
        test_gate="import pytest\n\n@pytest.mark.ppl_max('./copy', 'words', 60.5)\ndef test_gate(): pass\n",
    )
    # The gate is asked of the weights that are there when the model is loaded.
    project.run("--lmgate-report", "json:report.json", fresh=True).expect(1, failed=1)
    broken = project.report()["gates"][0]["value"]
    project.write(conftest="")
    shutil.copy(models / "die" / "model.safetensors", weights)
    project.run("--lmgate-report", "json:report.json").expect(0, passed=1)
    (gate,) = project.report()["gates"]
    assert not gate["cached"]
    # And the broken weights are found broken, from the cache.
    shutil.copy(models / "sure" / "model.safetensors", weights)
    project.run("--lmgate-report", "json:report.json").expect(1, failed=1)
    (gate,) = project.report()["gates"]
    assert (gate["value"], gate["cached"]) == (broken, True)


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
        test_same="""
            import pytest

            @pytest.mark.ppl_max("renamed", "renamed", 60.5)
            def test_limit(): pass

            @pytest.mark.ppl_max("renamed", "renamed", 61, unit="word", stride=16, max_length=32)
            def test_unit(): pass

            @pytest.mark.ppl_max("./moved", "./copied.txt", 62, average="window", allow_beyond_context=True)
            def test_average(): pass

            @pytest.mark.bpb_max("renamed", "./copied.txt", 9)
            def test_bits(): pass
        """,
        conftest="""
            import sys

            def pytest_sessionfinish():
                assert "torch" not in sys.modules
        """,
    )
    measured.run("--lmgate-report", "json:report.json", fresh=True).expect(0, passed=4)
    assert all(gate["cached"] for gate in measured.report()["gates"])


def test_weights_rewritten_in_place_with_the_same_size_and_time_are_seen(measured: Project, models: Path) -> None:
    weights = measured.model("copy", models / "die") / "model.safetensors"
    time.sleep(2.5)  # a file that has just changed is read again each time; this one shall be remembered
    measured.write(test_gate=GATE.replace("'die'", "'./copy'"))
    measured.run("--lmgate-report", "json:report.json").expect(0, passed=1)
    assert measured.report()["gates"][0]["cached"]
    remembered = [path for path in measured.cache.glob("digests/*/*") if path.is_file()]
    assert len(remembered) >= 4, "nothing was remembered, so nothing is tested"

    before = weights.stat()
    with weights.open("r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(bytes([weights.read_bytes()[-2] ^ 1]))
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = weights.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)

    outcome = measured.run("--lmgate-explain-cache", "--lmgate-report", "json:report.json")
    outcome.says("miss, model/model.safetensors: ")
    assert not measured.report()["gates"][0]["cached"]


def test_refresh_measures_again_and_once_even_by_two_workers(measured: Project) -> None:
    measured.write(
        conftest=COUNT_MEASUREMENTS,
        test_gate="""
            import pytest

            @pytest.mark.parametrize("n", range(4))
            @pytest.mark.ppl_max("die", "words", 60.5)
            def test_gate(n): pass
        """,
    )
    outcome = measured.run("--lmgate-refresh", "--lmgate-explain-cache", "-n", "2").expect(0, passed=4)
    assert measured.measured == ["die"]
    outcome.says("miss, nothing changed: measured again by --lmgate-refresh")
    measured.run("-n", "2").expect(0, passed=4)
    assert measured.measured == ["die"]


def test_refresh_measures_again_what_a_machine_with_a_fast_clock_measured(measured: Project) -> None:
    for entry in measured.entries:
        forge(entry, facts=lambda facts: {**facts, "measured_at": time.time() + 1e9})
    measured.write(conftest=COUNT_MEASUREMENTS, test_gate=GATE)
    measured.run().expect(0, passed=1)
    assert measured.measured == []
    measured.run("--lmgate-refresh").expect(0, passed=1)
    assert measured.measured == ["die"]


def _make_variants(project: Project, models: Path) -> None:
    weights = project.model("weights", models / "die") / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-2] ^= 1
    weights.write_bytes(data)
    config = project.model("config", models / "die") / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "rms_norm_eps": 1e-3}))
    tokenizer = project.model("tokenizer", models / "die") / "tokenizer.json"
    tokens = json.loads(tokenizer.read_text())
    vocabulary = tokens["model"]["vocab"]
    vocabulary["w1"], vocabulary["w2"] = vocabulary["w2"], vocabulary["w1"]
    tokenizer.write_text(json.dumps(tokens))
    words = (models / "words.txt").read_text()
    (project.folder / "changed.txt").write_text(words + " w1")
    rows = [json.dumps({"text": words}), json.dumps({"text": "w1 w2"})]
    (project.folder / "rows.jsonl").write_text("\n".join(rows))
    project.write(
        lmgate_yaml=f"""
            models:
              die: {{path: {models}/die}}
              double: {{path: {models}/die, dtype: float64}}
              eager: {{path: {models}/die, load: {{attn_implementation: eager}}}}
            datasets:
              words: {{path: {models}/words.txt}}
              joined: {{path: rows.jsonl, join: " w3 "}}
              first_row: {{path: rows.jsonl, limit: 1}}
        """
    )


def _shard(folder: Path) -> None:
    """Split a model's weights in two files, one of them in a folder within."""
    from safetensors.numpy import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    shards = {"inner/head.safetensors": {"lm_head.weight": weights.pop("lm_head.weight")}, "rest.safetensors": weights}
    (folder / "inner").mkdir()
    for file, tensors in shards.items():
        save_file(tensors, folder / file, {"format": "pt"})
    where = {tensor: file for file, tensors in shards.items() for tensor in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
