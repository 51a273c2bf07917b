"""The address of a measurement changes with everything that is in it, and with nothing else."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_lmgate.cache.store import Fingerprint, difference

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
