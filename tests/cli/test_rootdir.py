"""Rootdir and ini file are those that pytest itself finds."""

from inspect import signature
from pathlib import Path

import pytest
from _pytest.config.findpaths import determine_setup

from pytest_lmgate.cli.console import find_root
from pytest_lmgate.errors import ConfigError

LAYOUTS = {
    "nothing": {},
    "an ini file": {"pytest.ini": "[pytest]\nlmgate_cache = x\n"},
    "an ini file without a section": {"pytest.ini": ""},
    "a hidden ini file below": {"pytest.ini": "[pytest]\n", "a/.pytest.ini": "[pytest]\nlmgate_cache = y\n"},
    "pyproject": {"pyproject.toml": '[tool.pytest.ini_options]\nlmgate_cache = "x"\n'},
    "pyproject without pytest": {"a/pyproject.toml": "[project]\n", "setup.py": ""},
    "pyproject without pytest below an ini file": {"a/pyproject.toml": "[project]\n", "tox.ini": "[pytest]\n"},
    "tox without pytest": {"a/tox.ini": "[tox]\n", "setup.cfg": "[tool:pytest]\nlmgate_cache = x\n"},
    "setup.py": {"a/setup.py": "", "a/setup.cfg": "[metadata]\n"},
    "two in one folder": {"pytest.ini": "[pytest]\n", "pyproject.toml": '[tool.pytest.ini_options]\nx = "1"\n'},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_rootdir_ini_file_and_settings_are_pytest_s(
    layout: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "a" / "b"
    here.mkdir(parents=True)
    for name, text in layout.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(here)
    since_pytest_9 = {"override_ini": None} if "override_ini" in signature(determine_setup).parameters else {}
    folder, ini, settings, *_ = determine_setup(
        inifile=None, args=[], rootdir_cmd_arg=None, invocation_dir=here, **since_pytest_9
    )
    found = find_root(here)
    assert (found.folder, found.ini) == (folder, ini)
    mine = settings.get("lmgate_cache")
    assert found.settings.get("lmgate_cache") == getattr(mine, "value", mine)


def test_a_file_that_pytest_cannot_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool")
    with pytest.raises(ConfigError, match=r"pyproject\.toml: pytest's configuration cannot be read"):
        find_root(tmp_path)


def test_a_switch_that_says_neither_on_nor_off_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nlmgate_offline = ture\n")
    with pytest.raises(ConfigError, match=r"lmgate_offline: expected one of .*; got 'ture'"):
        find_root(tmp_path).is_on("offline")
    assert not find_root(tmp_path).is_on("refresh")


@pytest.mark.parametrize("name", ["pytest.toml", ".pytest.toml"])
@pytest.mark.parametrize(("text", "cache"), [('[pytest]\nlmgate_cache = "x"\n', "x"), ("", ".lmgate_cache")])
def test_the_toml_file_of_pytest_alone_is_read(name: str, text: str, cache: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / "inner").mkdir()
    found = find_root(tmp_path / "inner")
    assert (found.folder, found.ini) == (tmp_path, tmp_path / name)
    assert found.cache(None) == tmp_path / cache
