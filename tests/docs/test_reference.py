"""The pages of docs/reference are those that the code gives."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


def generated() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("generate_reference", FOLDER / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return dict(module.pages())


PAGES = generated()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_the_code_gives_it(name: str) -> None:
    written = (FOLDER / name).read_text(encoding="utf-8")
    assert written == PAGES[name].rstrip() + "\n", "run: python docs/reference/generate.py"


def test_no_page_is_left_over() -> None:
    assert {page.name for page in FOLDER.glob("*.md")} == set(PAGES)
