"""Every command in the docs prints what the docs say. `make docs` runs this; it takes minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Command, Folder, differences, steps
from tests.end_to_end.projects import environment

PAGES = {
    str(page.relative_to(ROOT)): list(steps(page.read_text(encoding="utf-8")))
    for page in sorted((ROOT / "docs").rglob("*.md"))
}
RUN = [name for name, found in PAGES.items() if any(isinstance(step, Command) for step in found)]


def test_the_tutorial_and_the_command_line_are_among_the_pages() -> None:
    assert {"docs/tutorial.md", "docs/cli.md"} <= set(RUN)


@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_print_what_it_says(page: str, tmp_path: Path) -> None:
    folder = Folder(tmp_path, environment())
    for step in PAGES[page]:
        printed = folder.do(step)
        if isinstance(step, Command):
            different = differences(step.printed, printed)
            assert not different, f"{page}:{step.line}: $ {step.script}\n{different}"
