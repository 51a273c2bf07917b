"""Links of the README: to files that are there, and absolute once the project has an address."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RELATIVE = [link for link in re.findall(r"\]\(([^)\s]+)\)", README) if "://" not in link]


@pytest.mark.parametrize("link", sorted(set(RELATIVE)))
def test_a_relative_link_leads_to_a_file_and_to_a_heading_in_it(link: str) -> None:
    path, _, heading = link.partition("#")
    target = ROOT / path if path else ROOT / "README.md"
    assert target.exists()
    if heading:
        titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert heading in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_are_absolute_where_the_project_has_an_address() -> None:
    """A package index shows the README without the files beside it."""
    if "[project.urls]" not in (ROOT / "pyproject.toml").read_text(encoding="utf-8"):
        pytest.skip("pyproject.toml names no address that links could lead to")
    assert RELATIVE == []
