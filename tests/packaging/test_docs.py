"""The README's links lead somewhere, and the changelog is of this version."""

import re
from pathlib import Path

import pytest

import pytest_lmgate

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
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
