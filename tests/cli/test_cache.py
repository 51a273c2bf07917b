"""``lmgate cache``: entries are named, checked, and removed oldest first, and nothing else is touched."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from pytest_lmgate.cache.files import hold
from pytest_lmgate.cache.store import Fingerprint, Store, StoredResult, lock_of
from pytest_lmgate.cli.app import app
from pytest_lmgate.cli.console import bytes_of
from pytest_lmgate.errors import CacheError
from pytest_lmgate.report.text import byte_size
from pytest_lmgate.settings.session import CacheKey

KEY = "0123456789abcdef0123"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return Store(tmp_path / ".lmgate_cache", pytest.fail)


def put(store: Store, model: str, *, days: float = 0, kind: str = "token-nll/5", tokens: int = 100) -> Path:
    fingerprint = Fingerprint.of(kind, {"data": "d", "model": model, "torch": "2.13"})
    facts = {"models": [model], "dataset": "words", "metric": "ppl", "measured_at": 1.7e9, "machine": "here, Linux"}
    store.put(fingerprint, StoredResult({"nll": np.zeros(tokens, dtype=np.float32)}, facts))
    path = store.path(fingerprint)
    used = time.time() - 86400 * days
    os.utime(path, (used, used))
    return path


def lmgate(*arguments: str, code: int = 0, typed: str | None = None) -> Result:
    result = CliRunner().invoke(app, ["cache", *arguments], input=typed)
    assert result.exit_code == code, result.output
    return result


def test_ls_names_what_each_entry_holds_the_last_used_first(store: Store) -> None:
    put(store, "old", days=3)
    path = put(store, "new", kind="kl/1", tokens=12345, days=-1)  # the clock has gone backwards since
    header, first, second, total = lmgate("ls").stdout.splitlines()
    assert header.split() == ["id", "used", "size", "kind", "state", "metric", "model", "dataset", "count"]
    size = byte_size(path.stat().st_size).split()
    assert first.split() == [path.stem[:12], "0", "s", *size, "kl/1", "whole", "ppl", "new", "words", "12,345"]
    assert " 3 d " in second
    assert " old " in second
    assert total.startswith(f"{store.folder}: 2 entries, 5")


def test_show_prints_the_ingredients_and_where_it_was_measured(store: Store) -> None:
    path = put(store, "m")
    out = lmgate("show", path.stem[:8].upper()).stdout
    assert "measured     2023-11-14 22:13:20 UTC\n" in out
    assert "machine      here, Linux\n" in out
    assert out.endswith("ingredients\n  data: d\n  model: m\n  torch: 2.13\n")
    assert json.loads(lmgate("show", path.stem[:8], "--json").stdout)["ingredients"]["torch"] == "2.13"
    assert "none does" in lmgate("show", "zz", code=2).stderr
    put(store, "another")
    assert "2 do" in lmgate("show", "", code=2).stderr


def test_verify_passes_whole_entries_and_fails_by_each_broken_one(store: Store) -> None:
    put(store, "good")
    assert "checksums of 1 entry checked, 0 broken" in lmgate("verify").stdout
    flipped, cut, moved = (put(store, name) for name in ("flipped", "cut", "moved"))
    data = bytearray(flipped.read_bytes())
    data[-1] ^= 1
    flipped.write_bytes(data)
    cut.write_bytes(cut.read_bytes()[:-5])
    moved.rename(moved.with_name(f"{'0' * 64}.lmgate"))
    out = lmgate("verify", code=1).stdout
    assert out.count("its checksum does not match") == 2
    assert out.count("it contains another measurement") == 1
    assert "4 entries checked, 3 broken" in out
    assert flipped.exists()
    assert "broken" not in lmgate("ls").stdout.splitlines()[1]  # the heads of all are whole


def test_verify_wants_signatures_where_there_is_a_key(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(Store(store.folder, pytest.fail, CacheKey(KEY.encode())), "signed")
    monkeypatch.setenv("LMGATE_CACHE_KEY", KEY)
    assert "checksums and signatures of 1 entry checked, 0 broken" in lmgate("verify").stdout
    plain = put(store, "plain")
    assert f"{plain}: it has no signature" in lmgate("verify", code=1).stdout
    monkeypatch.setenv("LMGATE_CACHE_KEY", KEY[::-1])
    assert "2 broken" in lmgate("verify", code=1).stdout


def test_gc_removes_what_was_not_used_for_longest_until_the_rest_fits(store: Store) -> None:
    paths = [put(store, name, days=days) for name, days in {"oldest": 30, "hit": 40, "new": 1}.items()]
    assert store.get(Fingerprint.of("token-nll/5", {"data": "d", "model": "hit", "torch": "2.13"})) is not None
    aside = store.folder / "set-aside" / f"{'1' * 64}.lmgate"
    aside.parent.mkdir()
    aside.write_bytes(b"broken")
    sizes = [path.stat().st_size for path in paths]
    assert "2 entries removed" in lmgate("gc", "--max-size", f"{sizes[1] + sizes[2]}B").stdout
    assert [path.exists() for path in (aside, *paths)] == [False, False, True, True]


def test_gc_leaves_entries_that_are_being_measured_and_files_that_are_not_ours(store: Store, tmp_path: Path) -> None:
    held, free = put(store, "held"), put(store, "free")
    mine = held.with_name("notes.txt")
    mine.write_text("mine")
    (store.folder / "token-nll" / "readme.md").write_text("mine")
    outside = tmp_path / "elsewhere" / "token-nll" / "ab"
    outside.mkdir(parents=True)
    other = outside / f"{'2' * 64}.lmgate"
    other.write_bytes(free.read_bytes())
    (store.folder / "linked").symlink_to(outside.parent)
    (held.parent / f"{'3' * 64}.lmgate").symlink_to(other)
    with hold(lock_of(store.folder, held.stem)):
        out = lmgate("gc", "--max-size", "0").stdout
    assert f"{held}: stays, since it is being measured" in out
    assert "1 entry removed" in out
    assert [each.exists() for each in (held, free, other, mine)] == [True, False, True, True]
    assert len(json.loads(lmgate("ls", "--json").stdout)["entries"]) == 1


def test_sizes_are_read_as_people_write_them_and_anything_else_is_a_usage_error(store: Store) -> None:
    sizes = {"1k": 1000, "1.5KiB": 1536, "2 GB": 2 * 10**9, "7B": 7, "0": 0}
    assert {written: bytes_of(written) for written in sizes} == sizes
    for wrong in ("", "much", "1X", "-1", "1 2", "2", "1.5"):
        assert "500M" in lmgate("gc", f"--max-size={wrong}", code=2).stderr


def test_clear_asks_and_takes_remembered_digests_along(store: Store) -> None:
    path = put(store, "m")
    digest = store.folder / "digests" / "ab" / ("c" * 38)
    digest.parent.mkdir(parents=True)
    digest.write_bytes(b"remembered")
    (digest.parent / "notes.txt").write_text("not ours")
    assert "Remove 1 entry" in lmgate("clear", code=2, typed="n\n").stderr
    assert path.exists()
    lmgate("clear", "--yes")
    assert not path.exists()
    assert [each.name for each in digest.parent.iterdir()] == ["notes.txt"]
    assert (store.folder / ".gitignore").exists()


def test_a_broken_entry_and_a_file_in_the_place_of_the_cache_are_errors_that_name_it(
    store: Store, tmp_path: Path
) -> None:
    path = put(store, "m")
    path.write_bytes(b"broken")
    (tmp_path / "file").touch()
    for arguments, named in ((("show", path.stem[:8]), str(path)), (("ls", "--cache", "file"), "file: ")):
        failed = CliRunner().invoke(app, ["cache", *arguments]).exception
        assert isinstance(failed, CacheError)
        assert named in str(failed)
