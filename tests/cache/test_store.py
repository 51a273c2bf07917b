"""The store: what was put is got, whatever cannot be trusted is not, and every ingredient changes the address."""

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from pytest_lmgate.cache import files
from pytest_lmgate.cache.files import write_sealed
from pytest_lmgate.cache.store import Fingerprint, Store, StoredResult, difference, encode
from pytest_lmgate.settings.session import CacheKey

FINGERPRINT = Fingerprint.of("token-nll/1", {"data": "d", "model": "m"})
OTHER = Fingerprint.of("token-nll/1", {"data": "d", "model": "other"})
ENTRY = StoredResult({"nll": np.array([0.5, 1.5], dtype=np.float32)}, {"running_text": True})


class _Cache:
    """A store and what it warned of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warnings: list[str] = []
        self.store = Store(folder, self.warnings.append)

    def file(self, suffix: str, fingerprint: Fingerprint = FINGERPRINT) -> Path:
        address = fingerprint.address
        return self.folder / "token-nll" / address[:2] / f"{address}{suffix}"


@pytest.fixture
def cache(tmp_path: Path) -> _Cache:
    return _Cache(tmp_path / "cache")


@pytest.mark.parametrize(
    "array",
    [
        np.array([0.1, -0.0, 1e-300, np.inf, np.nan]),
        np.array([0.1, 3e38, np.nan], dtype=np.float32),
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        np.arange(10.0)[::3],
        np.array([True, False]),
        np.array(2.5),
        np.zeros((3, 0), dtype=np.float32),
        np.array([1.5, 2.5], dtype=">f8"),
    ],
    ids=lambda array: f"{array.dtype.str}{array.shape}",
)
def test_an_array_comes_back_with_its_bits_shape_and_dtype(cache: _Cache, array: Any):
    cache.store.put(FINGERPRINT, StoredResult({"array": array, "other": np.zeros(1)}))
    found = cache.store.get(FINGERPRINT)
    assert set(found.arrays) == {"array", "other"}
    got = found.arrays["array"]
    assert (got.shape, got.dtype) == (array.shape, array.dtype.newbyteorder("="))
    np.testing.assert_array_equal(got, array)


def test_a_measurement_is_found_under_its_own_fingerprint_only(cache: _Cache):
    cache.store.put(FINGERPRINT, ENTRY)
    same = dict(FINGERPRINT.ingredients)
    for other in (OTHER, Fingerprint.of("token-nll/2", same), Fingerprint.of("generations/1", same)):
        assert cache.store.get(other) is None


def test_a_partial_measurement_is_not_a_whole_one_and_goes_when_the_whole_comes(cache: _Cache):
    partial = StoredResult({"nll": np.array([0.5, np.nan])})
    cache.store.put_partial(FINGERPRINT, partial)
    assert cache.store.get(FINGERPRINT) is None
    found = cache.store.get_partial(FINGERPRINT)
    np.testing.assert_array_equal(found.arrays["nll"], [0.5, np.nan])
    cache.store.put(FINGERPRINT, ENTRY)
    assert cache.store.get_partial(FINGERPRINT) is None
    assert not cache.file(".partial").exists()


Spoil = Callable[[Path], object]


def _sealed(body: bytes) -> Spoil:
    return lambda path: write_sealed(path, body)


def _sealed_metadata(fingerprint: str, facts: str) -> Spoil:
    return _sealed(safetensors.numpy.save({}, metadata={"fingerprint": fingerprint, "facts": facts}))


_BAD = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "one bit flipped": lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("a file of somebody else's"),
    "another measurement": _sealed_metadata(OTHER.text, "{}"),
    "no fingerprint": _sealed(safetensors.numpy.save({"nll": np.zeros(1)})),
    "arrays that are cut off": _sealed(encode(ENTRY, FINGERPRINT)[:-1]),
    "a fingerprint that is none": _sealed_metadata("[]", "{}"),
    "a fingerprint that is not JSON": _sealed_metadata("token-nll/1", "{}"),
    "facts that are none": _sealed_metadata(FINGERPRINT.text, "[1]"),
    "facts that are not JSON": _sealed_metadata(FINGERPRINT.text, "{"),
    "an empty body": _sealed(b""),
    "a body of other bytes": _sealed(bytes(range(256))),
    "a header that is no mapping": _sealed((2).to_bytes(8, "little") + b"[]"),
    "metadata that is no mapping": _sealed((19).to_bytes(8, "little") + b'{"__metadata__": 1}'),
    "a header that is too deep": _sealed((100_000).to_bytes(8, "little") + b"[" * 100_000),
    "a length beyond the end": _sealed((2**63).to_bytes(8, "little") + b"{}"),
}


@pytest.mark.parametrize("suffix", [".lmgate", ".partial"])
@pytest.mark.parametrize("spoil", _BAD.values(), ids=_BAD.keys())
def test_an_entry_that_cannot_be_trusted_is_set_aside_with_a_warning(cache: _Cache, suffix: str, spoil: Spoil):
    put, get = cache.store.put, cache.store.get
    if suffix == ".partial":
        put, get = cache.store.put_partial, cache.store.get_partial
    path = cache.file(suffix)
    put(FINGERPRINT, ENTRY)
    spoil(path)
    spoiled = path.read_bytes()
    assert get(FINGERPRINT) is None
    aside = cache.folder / "set-aside" / path.name
    assert aside.read_bytes() == spoiled
    (warning,) = cache.warnings
    assert warning.startswith("a cache entry cannot be trusted: ")
    assert warning.endswith(f"; set aside as {aside}; measuring again")
    put(FINGERPRINT, ENTRY)
    assert get(FINGERPRINT) is not None
    assert len(cache.warnings) == 1


def test_under_a_key_an_unsigned_entry_stays_with_a_remark_until_it_is_measured_again(cache: _Cache) -> None:
    remarks: list[str] = []
    signed = Store(cache.folder, cache.warnings.append, CacheKey(bytes(16)), remarks.append)
    cache.store.put(FINGERPRINT, ENTRY)
    cache.store.put_partial(FINGERPRINT, ENTRY)
    assert signed.get(FINGERPRINT) is signed.get_partial(FINGERPRINT) is None
    assert len(set(remarks)) == 1
    assert not cache.warnings
    assert not (cache.folder / "set-aside").exists()
    signed.put(FINGERPRINT, ENTRY)
    assert signed.get(FINGERPRINT) is not None
    assert cache.store.get(FINGERPRINT) is not None, "without the key the checksum is enough"


def test_a_folder_that_cannot_be_written_warns_and_loses_only_the_result(tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    cache = _Cache(tmp_path / "file" / "cache")
    cache.store.put(FINGERPRINT, ENTRY)
    assert cache.store.get(FINGERPRINT) is None
    with cache.store.lock(FINGERPRINT):
        pass
    said = [f"the cache folder {cache.folder} cannot be {done}" for done in ("written", "locked")]
    assert [warning.partition(" (")[0] for warning in cache.warnings] == said


def test_entries_that_cannot_be_read_are_measured_again_with_a_warning(cache: _Cache, monkeypatch: pytest.MonkeyPatch):
    cache.store.put(FINGERPRINT, ENTRY)

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(files, "_require_file", refuse)
    assert cache.store.get(FINGERPRINT) is cache.store.get_partial(FINGERPRINT) is None
    folder = cache.file(".lmgate").parents[1]
    warning = f"entries in the cache folder {folder} cannot be read (Permission denied); measuring again"
    assert cache.warnings == [warning, warning]


def _link(path: Path) -> None:
    """A link to a whole entry elsewhere."""
    store = Store(path.parents[3] / "elsewhere", print)
    store.put(FINGERPRINT, ENTRY)
    (whole,) = store.folder.rglob("*.lmgate")
    path.symlink_to(whole)


@pytest.mark.parametrize("replace", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero"), _link])
def test_a_pipe_a_folder_or_a_device_in_the_place_of_an_entry_holds_nobody_up(cache: _Cache, replace: Spoil):
    file = cache.file(".lmgate")
    file.parent.mkdir(parents=True)
    replace(file)
    assert cache.store.get(FINGERPRINT) is None
    assert "not a file; set aside" in cache.warnings[0]
    cache.store.put(FINGERPRINT, ENTRY)
    assert cache.store.get(FINGERPRINT) is not None


@pytest.mark.parametrize("linked", ["token-nll", "token-nll/*", "locks", "set-aside", "digests"])
def test_a_folder_in_the_cache_that_is_a_link_is_not_followed(
    cache: _Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: str
):
    monkeypatch.setattr("pytest_lmgate.cache.store._RACY_SECONDS", -1.0)
    shard = FINGERPRINT.address[:2]
    victim, path = tmp_path / "victim", cache.folder / linked.replace("*", shard)
    (victim / shard).mkdir(parents=True)
    path.parent.mkdir(parents=True)
    path.symlink_to(victim)
    kept = linked in ("locks", "set-aside", "digests")
    with cache.store.lock(FINGERPRINT):
        cache.store.put(FINGERPRINT, ENTRY)
        assert (cache.store.get(FINGERPRINT) is not None) == kept
        if linked == "set-aside":
            cache.file(".lmgate").write_bytes(b"damaged")
            assert cache.store.get(FINGERPRINT) is None
    (tmp_path / "a file").write_text("content")
    cache.store.digests.digest(tmp_path / "a file")
    assert linked == "digests" or list(cache.folder.glob("digests/*/*"))
    assert [file for file in victim.rglob("*") if file.is_file()] == []
    assert linked == "digests" or "its folder is a link" in cache.warnings[0]


def test_the_entry_with_the_fewest_changes_is_explained_however_old_it_is(cache: _Cache):
    for data, dtype in (("old", "a"), ("d", "old"), ("old", "old")):
        cache.store.put(made := Fingerprint.of("token-nll/1", {"data": data, "model": data, "dtype": dtype}), ENTRY)
        if data == "d":
            os.utime(cache.file(".lmgate", made), (1e9, 1e9))
    new = Fingerprint.of("token-nll/1", {"data": "d", "model": "d", "dtype": "a"})
    assert cache.store.explain(new) == ["dtype: old -> a"]


def test_other_measurements_and_the_entry_itself_explain_nothing(cache: _Cache):
    cache.store.put(Fingerprint.of("generations/1", {"data": "d", "model": "other"}), ENTRY)
    cache.store.put(FINGERPRINT, ENTRY)
    cache.store.put_partial(OTHER, ENTRY)
    assert cache.store.explain(FINGERPRINT) == []


_INGREDIENTS = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=6)


def test_an_address_is_the_sha_256_of_the_canonical_text() -> None:
    fingerprint = Fingerprint.of("token-nll/1", {"dtype": "auto", "data": "é"})
    text = '{"ingredients": {"data": "\\u00e9", "dtype": "auto"}, "kind": "token-nll/1"}'
    assert fingerprint.text == text
    assert fingerprint.address == hashlib.sha256(text.encode()).hexdigest()


@given(ingredients=_INGREDIENTS.filter(bool), data=st.data(), value=st.text(max_size=8))
def test_the_address_changes_with_every_ingredient(ingredients: dict[str, str], data: st.DataObject, value: str):
    whole = Fingerprint.of("k", ingredients)
    name = data.draw(st.sampled_from(sorted(ingredients)))
    changed = Fingerprint.of("k", {**ingredients, name: value})
    assert (changed.address == whole.address) == (value == ingredients[name])
    without = {key: kept for key, kept in ingredients.items() if key != name}
    assert Fingerprint.of("k", without).address != whole.address
    assert Fingerprint.of("k2", ingredients).address != whole.address


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"kind": "k"}', '{"ingredients": {}}', '{"kind": 1, "ingredients": {}}',
     '{"kind": "k", "ingredients": []}', '{"kind": "k", "ingredients": {"a": 1}}'],
)  # fmt: skip
def test_text_that_is_no_fingerprint_is_a_value_error(text: str):
    with pytest.raises(ValueError, match=r".+"):
        Fingerprint.parse(text)


def test_a_difference_names_what_changed_came_and_went_from_old_to_new() -> None:
    old = Fingerprint.of("token-nll/1", {"dtype": "float32", "data": "same", "gone": "x"})
    new = Fingerprint.of("token-nll/2", {"dtype": "bfloat16", "data": "same", "come": "y"})
    assert difference(new, old) == [
        "kind: token-nll/1 -> token-nll/2",
        "come: (none) -> y",
        "dtype: float32 -> bfloat16",
        "gone: x -> (none)",
    ]
