"""What README, changelog and the first page of the docs say of the package and of each other holds."""

import re
import sys
from pathlib import Path

import pytest

import pytest_lmgate

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
INDEX = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NOT_FOR_USERS = {"benchmarks", "dev"}
RELATIVE = [link for link in re.findall(r"\]\(([^)\s]+)\)", README) if "://" not in link]


def test_the_newest_version_of_the_changelog_is_the_version_of_the_package() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[([^\]]+)\]", changelog, flags=re.MULTILINE)[0] == pytest_lmgate.__version__


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
    if "urls" not in PROJECT:
        pytest.skip("pyproject.toml names no address that links could lead to")
    assert RELATIVE == []


def test_every_page_is_linked() -> None:
    folder = ROOT / "docs"
    pages = {str(page.relative_to(folder)) for page in folder.rglob("*.md")} - {"index.md"}
    assert {page for page in pages if not page.startswith("figures/")} <= set(re.findall(r"\]\(([^)#\s]+)", INDEX))


def test_the_first_page_has_the_versions_of_the_project() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+ >=\S+)", INDEX, flags=re.MULTILINE))
    extras = {name: needs for name, needs in PROJECT["optional-dependencies"].items() if name not in NOT_FOR_USERS}
    assert {name: [text.replace(" ", "")] for name, text in rows.items()} == extras
    oldest = dict(need.split(">=") for need in PROJECT["dependencies"])
    named = re.search(r"Python (\S+) or newer, pytest (\S+), torch (\S+) and transformers (\S+) or newer", INDEX)
    assert named is not None
    assert f">={named[1]}" == PROJECT["requires-python"]
    assert named.groups()[1:] == tuple(oldest[name] for name in ("pytest", "torch", "transformers"))
