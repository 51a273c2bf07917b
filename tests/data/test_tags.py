"""Tags of rows."""

import pytest

from pytest_lmgate.data.columns import read_tags
from pytest_lmgate.errors import DataError


def test_values_are_tags_as_they_are_written() -> None:
    rows = [{"language": "ko", "new": True, "year": 2020}, {"language": "en", "new": False, "year": 2021}]
    assert read_tags(rows, ["language", "new", "year"], "d") == {
        "language": ("ko", "en"),
        "new": ("True", "False"),
        "year": ("2020", "2021"),
    }


@pytest.mark.parametrize("written", [int, float, str])
def test_many_different_numbers_become_four_ranges_of_as_many_rows(written: type) -> None:
    rows = [{"length": written(each)} for each in range(1, 41)]
    found = read_tags(rows, ["length"], "d")["length"]
    assert [(tag, found.count(tag)) for tag in dict.fromkeys(found)] == [
        ("1 to 10", 10), ("11 to 20", 10), ("21 to 30", 10), ("31 to 40", 10)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"lang": "ko"}, "row 1: tags: no column 'language'"),
        ({"language": None}, "row 1: tags: column 'language' is null"),
        ({"language": ["ko"]}, "row 1: tags: column 'language': expected text, a number, true or false, got list"),
        ("a text", "row 1: tags: expected a row with columns, got str"),
    ],
)
def test_a_row_without_its_tag_is_an_error(row: object, message: str) -> None:
    with pytest.raises(DataError, match="dataset 'd': ") as caught:
        read_tags([{"language": "ko"}, row], ["language"], "d")
    assert message in str(caught.value)
