"""The body of an entry is read as safetensors reads it, in place; what is not an entry is an error."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from pytest_lmgate.cache.fingerprint import Fingerprint
from pytest_lmgate.cache.packed import arrays_of, packed

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
        {"shape": [True, 2]},
        {"shape": 2},
        {"dtype": "F8", "shape": [8]},
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
