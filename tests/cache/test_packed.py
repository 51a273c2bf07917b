"""The body of an entry is read as safetensors reads it, in place; what is not an entry is an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from pytest_lmgate.cache import files
from pytest_lmgate.cache.files import read_sealed, write_sealed
from pytest_lmgate.cache.fingerprint import Fingerprint
from pytest_lmgate.cache.packed import arrays_of, packed
from pytest_lmgate.config.cache_key import CacheKey

FINGERPRINT = Fingerprint.of("token-nll/1", {"model": "m"})
ARRAYS = {
    "nll": np.linspace(0, 1, 1000, dtype=np.float32),
    "counts": np.arange(12, dtype=np.int64).reshape(3, 4),
    "hits": np.array([True, False]),
    "none": np.zeros((0, 3)),
    "one": np.array(7, dtype=np.uint8),
}


def body(**described: Any) -> bytes:
    """An entry of eight bytes whose array ``x`` is described otherwise than it is."""
    head = {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **described}}
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + bytes(8)


def test_arrays_are_those_that_safetensors_reads() -> None:
    written = b"".join(packed(ARRAYS, FINGERPRINT, {}))
    for found in (arrays_of(written), safetensors.numpy.load(written)):
        assert found.keys() == ARRAYS.keys()
        for name, array in ARRAYS.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize(
    "described",
    [
        {"data_offsets": [0, 16]},
        {"data_offsets": [-8, 8]},
        {"data_offsets": [8, 0]},
        {"data_offsets": [0, 7]},
        {"data_offsets": ["0", "8"]},
        {"data_offsets": [0]},
        {"shape": [3]},
        {"shape": [-1, -1]},
        {"shape": ["2"]},
        {"shape": 2},
        {"dtype": "BF16"},
        {"dtype": 4},
    ],
)
def test_an_array_that_is_not_as_it_is_described_is_an_error(described: dict[str, Any]) -> None:
    assert arrays_of(body())["x"].tolist() == [0, 0]
    with pytest.raises(ValueError, match=r"array|buffer"):
        arrays_of(body(**described))


@pytest.mark.parametrize("head", [b"[]", b"7", b'{"x": 1}', b'{"x": {"dtype": "F32"}}'])
def test_a_head_that_names_no_arrays_is_an_error(head: bytes) -> None:
    with pytest.raises(ValueError, match=r"expected safetensors|array 'x' is not described as one"):
        arrays_of(len(head).to_bytes(8, "little") + head)


def test_a_large_entry_is_mapped_and_a_signed_one_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MAPPED", 1000)
    path, signed, key = tmp_path / "a.lmgate", tmp_path / "b.lmgate", CacheKey(b"k" * 32)
    write_sealed(path, *packed(ARRAYS, FINGERPRINT, {}))
    write_sealed(signed, *packed(ARRAYS, FINGERPRINT, {}), key=key)
    mapped, read = read_sealed(path), read_sealed(signed, key)
    assert isinstance(mapped, memoryview)
    assert isinstance(read, bytes)
    assert bytes(mapped) == read
    write_sealed(path, b"another")  # by renaming, so that whoever reads the old one still has it
    np.testing.assert_array_equal(arrays_of(mapped)["nll"], ARRAYS["nll"])
