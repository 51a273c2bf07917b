"""What a user gets: the wheel is built from this tree, offline, and looked into."""

import configparser
import email
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import pytest_lmgate

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def dist_info(wheel: zipfile.ZipFile, name: str) -> str:
    return wheel.read(f"pytest_lmgate-{pytest_lmgate.__version__}.dist-info/{name}").decode()


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    built = {name for name in wheel.namelist() if ".dist-info/" not in name}
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "pytest_lmgate").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert built == package


def test_the_wheel_has_the_entry_point_the_types_the_version_the_licence_and_the_readme(wheel):
    entry_points = configparser.ConfigParser()
    entry_points.read_string(dist_info(wheel, "entry_points.txt"))
    assert dict(entry_points["pytest11"]) == {"lmgate": "pytest_lmgate.plugin"}
    assert {"pytest_lmgate/plugin/__init__.py", "pytest_lmgate/py.typed"} <= set(wheel.namelist())
    metadata = email.message_from_string(dist_info(wheel, "METADATA"))
    assert metadata["Version"] == pytest_lmgate.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "END OF TERMS AND CONDITIONS" in dist_info(wheel, "licenses/LICENSE")
    assert metadata.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")
