"""Files that services and people look for in a repository agree with the package and with each other."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import pytest_lmgate
from pytest_lmgate.tools.init.ci import REPOSITORY
from tests.packaging.test_dependencies import PROJECT

ROOT = Path(__file__).parents[2]
RELEASE = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
PAGES = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_address_of_the_repository_is_that_of_pyproject() -> None:
    address = PROJECT["urls"]["Repository"]
    files = ["SECURITY.md", "CITATION.cff", ".github/ISSUE_TEMPLATE/config.yml", "pyproject.toml"]
    for file in files:
        found = re.findall(r"https://github\.com/[\w.-]+/[\w.-]+", read(file))
        assert found, file
        assert set(found) == {address}, file
    assert address == f"https://github.com/{REPOSITORY}", "where a pipeline finds the action"


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["version"] == pytest_lmgate.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["abstract"] == PROJECT["description"]


def test_llms_txt_names_the_pages_of_the_docs_and_no_others() -> None:
    links = re.findall(r"\]\(([^)]+)\)", read("docs/llms.txt"))
    in_site = set(re.findall(r'= "([\w/]+\.md)"', read("zensical.toml")))
    assert len(links) == len(set(links))
    assert set(links) == in_site
    assert in_site <= PAGES


def test_only_the_job_that_publishes_may_ask_for_an_identity() -> None:
    build, publish = (RELEASE["jobs"][name] for name in ("build", "publish"))
    assert RELEASE["permissions"] == {"contents": "read"}
    assert "permissions" not in build
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["needs"] == "build"
    assert not [step for step in publish["steps"] if "run" in step]
    text = read(".github/workflows/release.yml")
    assert "secrets." not in text
    assert "twine check --strict" in text
    assert "make example VENV=.venv-wheel" in text


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What a release is built of."""
    for name in ("pytest_lmgate", "docs", "ci"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("- unreleased", "- 2026-01-02"))
    return tmp_path


def build(checkout: Path, tag: str) -> Any:
    (script,) = (step["run"] for step in RELEASE["jobs"]["build"]["steps"] if step.get("name") == "Build")
    python = checkout / "bin" / "python"
    python.parent.mkdir(exist_ok=True)
    if not python.exists():
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
    env = os.environ | {"GITHUB_REF_NAME": tag, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-e", "-c", script], cwd=checkout, env=env, capture_output=True, text=True, check=False
    )


def test_a_tag_builds_wheel_and_sdist_of_its_version_alone_once_the_changelog_has_its_date(checkout: Path) -> None:
    version = pytest_lmgate.__version__
    changelog = (checkout / "CHANGELOG.md").read_text()
    unreleased = re.sub(r"(## \[[\d.]+\]) - .*", r"\1 - unreleased", changelog, count=1)
    (checkout / "CHANGELOG.md").write_text(unreleased)
    assert "unreleased" in build(checkout, f"v{version}").stderr
    (checkout / "CHANGELOG.md").write_text(changelog)
    for tag in (version, "v9.9.9", "v9; touch gone", ""):
        done = build(checkout, tag)
        assert done.returncode == 2
        assert f"expected the tag v{version}" in done.stderr
    assert not (checkout / "dist").exists()
    done = build(checkout, f"v{version}")
    assert done.returncode == 0, done.stderr
    built = sorted(path.name for path in (checkout / "dist").iterdir() if path.name != ".gitignore")
    assert built == [f"pytest_lmgate-{version}-py3-none-any.whl", f"pytest_lmgate-{version}.tar.gz"]


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
