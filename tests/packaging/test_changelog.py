"""The changelog and the package speak of the same version."""

import re
from pathlib import Path

import pytest_lmgate

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"


def test_the_newest_version_of_the_changelog_is_the_version_of_the_package():
    versions = re.findall(r"^## \[([^\]]+)\]", CHANGELOG.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert versions[0] == pytest_lmgate.__version__
