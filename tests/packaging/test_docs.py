"""The links of the README and its kin lead somewhere, and the changelog is of this version."""

import re
from pathlib import Path

import pytest_lmgate

ROOT = Path(__file__).parents[2]
FILES = [ROOT / name for name in ("README.md", "AGENTS.md", "SECURITY.md")]
LINKS = sorted({(file, link) for file in FILES for link in re.findall(r"\]\(([^)\s]+)\)", file.read_text("utf-8"))})


def test_the_newest_version_of_the_changelog_is_the_version_of_the_package() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[([^\]]+)\]", changelog, flags=re.MULTILINE)[0] == pytest_lmgate.__version__


def test_a_relative_link_leads_to_a_file_and_to_a_heading_in_it() -> None:
    for file, link in LINKS:
        path, _, heading = link.partition("#")
        target = ROOT / path if path else file
        assert "://" in link or target.exists(), link
        if "://" in link or not heading:
            continue
        titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert heading in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
