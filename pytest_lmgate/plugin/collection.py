"""What a session collects: tests with gates or our fixtures, gates that pytest did not collect, misspelt markers."""

from __future__ import annotations

import ast
import functools
import linecache
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.plugin import options
from pytest_lmgate.plugin.yaml_items import asked_files, may_have_gates, placed, registered_marks
from pytest_lmgate.report.text import counted
from pytest_lmgate.settings.metrics import FIXTURES, MARKER_NAMES, metric_called
from pytest_lmgate.settings.options import find_project_file


def gates_of(item: pytest.Item) -> list[str]:
    return [mark.name for mark in item.iter_markers() if mark.name in MARKER_NAMES]


def is_gated(item: pytest.Item) -> bool:
    return bool(gates_of(item))


def is_measuring(item: pytest.Item) -> bool:
    return not FIXTURES.keys().isdisjoint(getattr(item, "fixturenames", ()))


def mixed_up(gated: Sequence[pytest.Item], measuring: Sequence[pytest.Item]) -> list[str]:
    return _same_ids([*gated, *measuring]) + _shared_fixtures(measuring)


def _same_ids(items: Sequence[pytest.Item]) -> list[str]:
    """Refuse tests in two files that have the same id: one verdict would hide the other.

    pytest counts ids from rootdir, and those of tests outside it from the folder on the command line.
    """
    files: dict[str, Path] = {}
    return [
        f"{item.path} and {first} both have a test {item.nodeid}, since pytest's rootdir is {item.config.rootpath}: "
        "call pytest with --rootdir of a folder that contains both"
        for item in items
        if (first := files.setdefault(item.nodeid, item.path)) != item.path
    ]


def refuse_late_gates(item: pytest.Item, expected: int) -> None:
    """Fail a test that got more gates than `expected` after its setup, which measures them."""
    names = gates_of(item)
    if len(names) > expected and not item.config.getoption("no_lmgate"):
        pytest.fail(
            f"{item.nodeid}: a gate was added too late ({', '.join(dict.fromkeys(names))}): add it in a fixture of "
            "the test, or at collection; gates are measured once the test's fixtures are set up",
            pytrace=False,
        )


def test_id(item: pytest.Item) -> str:
    """Node id as the user would write it; xdist's loadgroup appends ``@group`` on its workers."""
    if not getattr(item.config.option, "loadgroup", False):
        return item.nodeid
    marks = list(item.iter_markers("xdist_group"))
    groups = [str(mark.args[0] if mark.args else mark.kwargs.get("name", "default")) for mark in marks]
    # All groups of a test, or with an older xdist the nearest one; an id may have its own @, as in [org/name@main].
    suffixes = [f"@{'_'.join(sorted(set(groups)))}", *(f"@{group}" for group in groups[:1])]
    found = next((suffix for suffix in suffixes if groups and item.nodeid.endswith(suffix)), "")
    return item.nodeid.removesuffix(found)


def left_out(config: pytest.Config, collected: Collection[Path]) -> list[str]:
    """Name each lmgate.yaml whose gates pytest did not collect: `pytest tests` skips a file next to the folder.

    Files that the user skips on purpose (``--ignore``, node ids, ``--lf``) are not named.
    """
    if config.getoption("no_lmgate"):
        return []
    files = [file for file in asked_files(config) if placed(file) not in collected]
    return [sentence for file in files if (sentence := _left_out(config, file))]


def without_parameters(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that were parametrized with nothing, and whose gates so do not run.

    The gates may have been marks of the parameters: then the test's file tells that there are some.
    """
    return [
        item
        for item in items
        if any(str(mark.kwargs.get("reason", "")).startswith(_NO_PARAMETERS) for mark in item.iter_markers())
        and (is_gated(item) or is_measuring(item) or names_gates(item.path))
    ]


_NO_PARAMETERS = "got empty parameter set"  # begins pytest's reason


def names_gates(path: Path) -> bool:
    """Return whether a file of Python, or one in a folder, names a marker or a fixture of this plugin."""
    words = re.compile(rf"\b({'|'.join(map(re.escape, [*MARKER_NAMES, *FIXTURES]))})\b".encode())
    try:
        return any(words.search(file.read_bytes()) for file in (path.rglob("*.py") if path.is_dir() else [path]))
    except OSError:
        return True


def _left_out(config: pytest.Config, file: Path) -> str:
    if _is_meant(config, file) or not may_have_gates(file):
        return ""
    from pytest_lmgate.settings.file import read_gates

    gates, problems = read_gates(file)
    count = len(gates) + len(problems)
    if not count:
        return ""
    inside = Path(os.path.relpath(file, config.invocation_params.dir))
    gates_were = f"{counted(count, 'gate')} of {file.name} {'were' if count != 1 else 'was'} not collected"
    return f"{gates_were} ({_why(config, file)}): add {inside} to pytest's arguments"


def _is_meant(config: pytest.Config, file: Path) -> bool:
    by_id = any("::" in argument for argument in config.args)
    return by_id or bool(
        getattr(config.option, "lf", False) or config.hook.pytest_ignore_collect(collection_path=file, config=config)
    )


def _why(config: pytest.Config, file: Path) -> str:
    here = config.invocation_params.dir
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return "pytest was given other paths"
    if not file.resolve().is_relative_to(here.resolve()):
        return f"pytest was started in {here.name}"
    return f"pytest does not enter {file.parent.name}"


def are_all_in(found: Iterable[pytest.Item], left: Iterable[pytest.Item]) -> bool:
    """Whether all collected tests still run, even if a plugin does not report what it deselects."""
    kept = set(map(id, left))  # not by node id, which xdist changes
    return all(id(item) in kept for item in found)


def only_lists(config: pytest.Config) -> bool:
    lists = ("collectonly", "lmgate_plan", "showfixtures", "show_fixtures_per_test")
    return any(getattr(config.option, name, False) for name in lists)


def passed(session: pytest.Session) -> bool:
    return session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def was_stopped(session: pytest.Session) -> bool:
    return bool(session.shouldfail or session.shouldstop) or session.exitstatus == pytest.ExitCode.INTERRUPTED


def asks_for_all(config: pytest.Config) -> bool:
    """Whether the command line selects everything: only a full run knows which baseline entries have no gate."""
    option = config.option
    selects = ("lf", "stepwise", "ignore", "ignore_glob", "deselect", "keyword", "markexpr", "maxfail")
    others = ("noconftest", "lmgate_config", "inifilename")
    # --strict-markers of pytest 9 is one of a setting, which selects nothing.
    is_other = any(not re.match(r"strict(_\w+)?=", each) for each in option.override_ini or ())
    by_arguments = config.args_source is pytest.Config.ArgsSource.ARGS
    in_rootdir = config.invocation_params.dir.resolve() == config.rootpath.resolve()
    return (
        in_rootdir
        and not by_arguments
        and not is_other
        and not any(getattr(option, name, None) for name in selects + others)
    )


_CLOSE = 0.85  # by difflib: ppl_mx is 0.92 from ppl_max
_ENDS = {"min": "min", "minimum": "min", "max": "max", "maximum": "max"}
_FILLERS = ("score", "value", "limit", "gate", "lmgate")
_ARGUMENTS = 3  # that any gate has: model, dataset, limit


def mistyped(items: Iterable[pytest.Item], markers: Collection[str]) -> list[str]:
    """Return a sentence for each mark that looks like a misspelt one of `markers`: pytest only warns.

    Marks without arguments cannot be gates, and marks that the project registers are its own.
    """
    unknown: dict[str, tuple[pytest.Item, int]] = {}  # the first of a name, and how many arguments it has
    for item in items:
        for mark in item.iter_markers():
            if mark.name not in markers and (mark.args or mark.kwargs):
                unknown.setdefault(mark.name, (item, len(mark.args) + len(mark.kwargs)))
    if not unknown:
        return []
    registered = registered_marks(next(item.config for item, _ in unknown.values()))
    found = {
        name: _meant(name, arguments, markers) for name, (_, arguments) in unknown.items() if name not in registered
    }
    return [
        f"{unknown[name][0].nodeid}: @pytest.mark.{name}: no such gate, did you mean {meant!r}? Register your own "
        "marks under `markers` in the ini file"
        for name, meant in found.items()
        if meant
    ]


def _meant(name: str, arguments: int, markers: Collection[str]) -> str:
    import difflib  # imported lazily: sessions without unknown marks never need it

    close = difflib.get_close_matches(name, markers, n=1, cutoff=_CLOSE)
    return next(iter([*_renamed(name, arguments, markers), *close]), "")


def _renamed(name: str, arguments: int, markers: Collection[str]) -> list[str]:
    """Return the marker that a name may mean: ``perplexity_max``, ``maxPPL``, ``ppl_min``, or ``ppl``."""
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", name)]
    ends = [_ENDS[word] for word in words if word in _ENDS]
    if not ends and arguments < _ARGUMENTS:
        return []
    metric = metric_called("".join(word for word in words if word not in _ENDS and word not in _FILLERS))
    return [marker for end in [*ends, "min", "max"] if (marker := f"{metric}_{end}") in markers]


def _shared_fixtures(items: Sequence[pytest.Item]) -> list[str]:
    """Refuse fixtures that measure once for tests of several projects: names differ between projects."""
    if not items or options.project_file(items[0].config):
        return []
    from pytest_lmgate.plugin.private import requested_fixtures  # imported lazily: other sessions never need it

    projects: dict[int, Path | None] = {}
    problems = []
    for item in items:
        requested = requested_fixtures(item)
        for name, definitions in requested.items():
            if definitions[-1].scope not in ("session", "package") or not _measures(name, requested):
                continue
            own = find_project_file(item.path.parent)
            if (first := projects.setdefault(id(definitions[-1]), own)) != own:
                problems.append(
                    f"the fixture {name!r} has one result for tests of two projects, {first} and {own}: give it the "
                    "scope 'module', or define it once in each project"
                )
    return problems


def _measures(name: str, requested: Mapping[str, Sequence[pytest.FixtureDef[Any]]]) -> bool:
    """Whether a fixture of the user's requests one of ours, directly or not."""
    if name in FIXTURES:
        return False
    needed, todo = set[str](), [name]
    while todo:  # fixtures that need each other in a circle are pytest's to refuse
        others = requested[each][-1].argnames if (each := todo.pop()) in requested else ()
        todo += {*others} - needed
        needed.update(others)
    return not FIXTURES.keys().isdisjoint(needed)


class MarkerLines:
    """Finds the lines of gates; each file is read once."""

    def __init__(self) -> None:
        self._decorators = functools.cache(_decorators)

    def place_of(self, item: pytest.Item, mark: pytest.Mark) -> tuple[str, int]:
        """Return the file and line (from 1) of a gate.

        That is the line of the marker's decorator, or of the test for markers of a class, a module or a parameter.
        """
        path, begin, _ = item.reportinfo()
        if begin is None:
            return "", 0
        file, line = str(Path(path)), begin + 1
        if isinstance(item, pytest.Function):
            # The last decorator is the first in the list.
            marks = getattr(item.obj, "pytestmark", [])
            own = [each for each in reversed(marks if isinstance(marks, list) else []) if each.name == mark.name]
            lines = [at for name, at in self._decorators(file).get(line, []) if name == mark.name]
            if len(own) == len(lines):  # else some have other names there
                line = next((at for each, at in zip(own, lines, strict=True) if each is mark), line)
        return file, line


def _decorators(file: str) -> dict[int, list[tuple[str, int]]]:
    """Return names and lines of each function's decorators, by the line of the first one."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):  # tests may come from something else than Python's text
        return {}
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.decorator_list:
            called = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
            names = [each.attr if isinstance(each, ast.Attribute) else "" for each in called]
            lines = [each.lineno for each in node.decorator_list]
            found[lines[0]] = list(zip(names, lines, strict=True))
    return found
