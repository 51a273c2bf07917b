"""The first page of the docs names every page, and the versions that pyproject.toml allows."""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
INDEX = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NOT_FOR_USERS = {"benchmarks", "dev"}


def test_every_page_is_linked() -> None:
    folder = ROOT / "docs"
    pages = {str(page.relative_to(folder)) for page in folder.rglob("*.md")} - {"index.md"}
    assert {page for page in pages if not page.startswith("figures/")} <= set(re.findall(r"\]\(([^)#\s]+)", INDEX))


def test_the_table_of_extras_has_their_versions() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+ >=\S+)", INDEX, flags=re.MULTILINE))
    extras = {name: needs for name, needs in PROJECT["optional-dependencies"].items() if name not in NOT_FOR_USERS}
    assert {name: [text.replace(" ", "")] for name, text in rows.items()} == extras


def test_the_oldest_versions_are_those_of_the_project() -> None:
    oldest = dict(need.split(">=") for need in PROJECT["dependencies"])
    named = re.search(r"Python (\S+) or newer, pytest (\S+), torch (\S+) and transformers (\S+) or newer", INDEX)
    assert named is not None
    assert f">={named[1]}" == PROJECT["requires-python"]
    assert named.groups()[1:] == tuple(oldest[name] for name in ("pytest", "torch", "transformers"))
