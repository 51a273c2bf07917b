"""`fixture("name")`: a marker argument that stands for the value of a pytest fixture, known only when the test runs."""

from __future__ import annotations

__all__ = ["FixtureReference", "fixture"]

from dataclasses import dataclass


@dataclass(frozen=True)
class FixtureReference:
    """The value of the pytest fixture `name`, to be asked for when the test runs."""

    name: str


def fixture(name: str) -> FixtureReference:
    """Stand for the value of the pytest fixture `name` in a marker.

    The fixture may return a ``(model, tokenizer)`` pair, a path, a name of lmgate.yaml, or (as a dataset) texts::

        @pytest.mark.ppl_max(lmgate.fixture("my_pair"), "wikitext2", 16.5)

    Raises:
        TypeError: `name` is not a string.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"lmgate.fixture expects the name of a pytest fixture, got {name!r}")
    return FixtureReference(name)
