"""What ``lmgate init`` finds below a folder, and what it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_lmgate.cli.init import discovery
from pytest_lmgate.cli.init.discovery import count_tokens, find_places, find_relative, text_column


def write(folder: Path, **sizes: int) -> None:
    for name, size in sizes.items():
        file = folder / name.replace("__", "/").replace("_DOT_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x" * size)


def test_checkpoints_and_texts_are_found_and_other_files_are_not(tmp_path: Path) -> None:
    write(
        tmp_path,
        models__b__config_DOT_json=2,
        models__b__model_DOT_safetensors=2,
        models__b__merges_DOT_txt=10,
        models__a_DOT_gguf=2,
        models__adapter__adapter_model_DOT_safetensors=2,
        _DOT_venv__lib__config_DOT_json=2,
        _DOT_venv__lib__model_DOT_safetensors=2,
        node_modules__words_DOT_txt=10,
        requirements_DOT_txt=10,
        LICENSE_DOT_txt=10,
        README_DOT_md=10,
        data__empty_DOT_txt=0,
        data__small_DOT_txt=10,
        data__large_DOT_raw=1000,
    )
    found = find_places(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in found.models] == ["models/a.gguf", "models/b"]
    assert [path.name for path in found.texts] == ["small.txt", "large.raw"]
    assert not found.is_cut


def test_tokens_are_estimated_from_the_beginning_of_a_text_and_from_the_rows_that_are_taken(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("ab " * 100_000)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"n": 1, "text": "ab " * 10}) + "\n" for _ in range(9000)))
    (tmp_path / "few.jsonl").write_text('{"text": "ab ab"}\n\n{"text": "ab"}\n')
    estimates = {
        (name, rows): count_tokens(tmp_path / name, rows, lambda text: len(text.split()))
        for name, rows in [("long.txt", None), ("rows.jsonl", None), ("rows.jsonl", 20), ("few.jsonl", 20)]
    }
    assert estimates["long.txt", None] == pytest.approx(100_000, rel=0.01)
    assert estimates["rows.jsonl", None] == pytest.approx(90_000, rel=0.01)
    assert estimates["rows.jsonl", 20] == 200
    assert estimates["few.jsonl", 20] == 3


def test_the_walk_ends_in_deep_and_in_wide_folders_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a__b__c__d__e__f__g_DOT_txt=10)
    assert find_places(tmp_path) == discovery.Places([], [], is_cut=True)
    monkeypatch.setattr(discovery, "_MOST_ENTRIES", 3)
    write(tmp_path, **{f"wide__{number}_DOT_dat": 1 for number in range(10)}, zz__z_DOT_txt=10)
    assert find_places(tmp_path).is_cut


def test_links_are_not_followed(tmp_path: Path) -> None:
    write(tmp_path, outside__words_DOT_txt=10, inside__x_DOT_dat=1)
    (tmp_path / "inside" / "loop").symlink_to(tmp_path)
    assert find_places(tmp_path / "inside").texts == []


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ('{"text": "a", "other": "longer than a"}', "text"),
        ('{"id": "1", "article": "a long text", "n": 3}', "article"),
        ('{"n": 3}', None),
        ("[1]", None),
        ("no json", None),
        ("", None),
    ],
)
def test_the_column_of_the_text(text: str, column: str | None, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    assert text_column(tmp_path / "x.jsonl") == column


def checkpoint(folder: Path, layers: int, weights: int) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(f'{{"model_type": "llama", "hidden_size": 8, "num_hidden_layers": {layers}}}')
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    (folder / "model.safetensors").write_bytes(b"\0" * weights)
    return folder


def test_a_rounded_model_is_found_beside_its_original_and_a_larger_one_of_the_family_is_not(tmp_path: Path) -> None:
    rounded = checkpoint(tmp_path / "int8", layers=2, weights=1000)
    checkpoint(tmp_path / "of-72-layers", layers=72, weights=90_000)
    assert find_relative(rounded, tmp_path.iterdir()) is None
    original = checkpoint(tmp_path / "float", layers=2, weights=4000)
    assert find_relative(rounded, tmp_path.iterdir()) == (original, True)
    assert find_relative(original, tmp_path.iterdir()) == (rounded, False)


def test_json_lines_without_a_text_and_links_that_lead_nowhere_are_no_texts(tmp_path: Path) -> None:
    (tmp_path / "numbers.jsonl").write_text('{"n": 3}')
    (tmp_path / "lines.jsonl").write_text('{"text": "a"}')
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    assert [path.name for path in find_places(tmp_path).texts] == ["lines.jsonl"]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", "[]"),
        ("tokenizer.json", '{"model": {}}'),
        ("tokenizer.json", None),
        ("config.json", None),
        ("config.json", "{"),
        ("config.json", "[]"),
    ],
)
def test_a_checkpoint_that_is_not_whole_has_no_relative(tmp_path: Path, file: str, text: str | None) -> None:
    rounded = checkpoint(tmp_path / "int8", layers=2, weights=1000)
    original = checkpoint(tmp_path / "float", layers=2, weights=4000)
    if text is None:
        (rounded / file).unlink()
    else:
        (rounded / file).write_text(text)
    assert find_relative(rounded, tmp_path.iterdir()) is None
    assert find_relative(original, tmp_path.iterdir()) is None


def test_two_checkpoints_without_a_config_that_can_be_read_are_no_relatives(tmp_path: Path) -> None:
    for name, weights in (("int8", 1000), ("float", 4000)):
        (checkpoint(tmp_path / name, layers=2, weights=weights) / "config.json").write_text("{")
    assert find_relative(tmp_path / "int8", tmp_path.iterdir()) is None
