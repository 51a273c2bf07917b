"""The pages of docs/reference, and the docs' table of engines and metrics, are those that the code gives."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.engines.registry import BACKENDS

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


def generator() -> Any:
    spec = importlib.util.spec_from_file_location("generate_reference", FOLDER / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


GENERATOR = generator()
PAGES: dict[str, str] = GENERATOR.pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_the_code_gives_it(name: str) -> None:
    written = (FOLDER / name).read_text(encoding="utf-8")
    assert written == PAGES[name].rstrip() + "\n", "run: python docs/reference/generate.py"


def test_no_page_is_left_over() -> None:
    assert {page.name for page in FOLDER.iterdir() if page.suffix in (".md", ".json")} == set(PAGES)


def test_the_table_of_engines_is_as_the_code_gives_it() -> None:
    written = GENERATOR.ENGINES.read_text(encoding="utf-8")
    assert written == GENERATOR.engines_page(), "run: python docs/reference/generate.py"


@pytest.mark.parametrize("name", BACKENDS)
def test_an_engine_says_what_it_offers(name: str) -> None:
    assert "offers" in vars(GENERATOR.engine(name)), "the table in the docs needs it"
