"""What this plugin uses of pytest that pytest does not document, tried with pytest 8.2 to 9.2.

pytest has no public way to look up a test's fixtures at collection, where a wrong name has to be an error, to collect
another file beside ``testpaths``, nor to read ``true`` in its own TOML where elsewhere is a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest


def fixture_definitions(item: pytest.Item, name: str) -> Sequence[pytest.FixtureDef[Any]]:
    """Return the fixtures of this name that a test can see; the last one overrides the others."""
    return item.session._fixturemanager.getfixturedefs(name, item) or ()


def requested_fixtures(item: pytest.Item) -> Mapping[str, Sequence[pytest.FixtureDef[Any]]]:
    """Return the fixtures that a test requests, directly or not, by name; none for an item that is not Python's."""
    info: Any = getattr(item, "_fixtureinfo", None)
    return {} if info is None else info.name2fixturedefs


def collect_too(config: pytest.Config, file: Path) -> None:
    """Let pytest collect a file besides the paths that it was given."""
    config.args.append(str(file))


def value_in_toml(config: pytest.Config, key: str) -> Any:
    """Return an option of pytest's own TOML tables as it was parsed, of any type."""
    return config._inicfg[key].value
