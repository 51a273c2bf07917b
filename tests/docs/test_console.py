"""What a page is taken to say, and when a command is taken to print it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs.pages import Before, Command, File, Folder, differences, steps

PAGE = """# Title
<!-- before:
touch seen
-->

```yaml title="lmgate.yaml"
models: {}
```

```sh
pip install something
```

```console
$ ls
lmgate.yaml
seen
$ cat lmgate.yaml
models: {}
```
"""


def test_a_page_is_files_commands_and_what_readers_do_not_see() -> None:
    assert list(steps(PAGE)) == [
        Before("\ntouch seen\n"),
        File("lmgate.yaml", "models: {}\n"),
        Command(15, "ls", ("lmgate.yaml", "seen")),
        Command(18, "cat lmgate.yaml", ("models: {}",)),
    ]


def test_its_commands_are_run_in_one_folder(tmp_path: Path) -> None:
    folder = Folder(tmp_path, os.environ)
    assert [folder.do(step) for step in steps(PAGE)] == ["", "", "lmgate.yaml\nseen\n", "models: {}\n"]


@pytest.mark.parametrize(
    "printed",
    [
        "ppl 1.9519 in 1.2 s\n",
        "ppl 1.9520 in 14.0 s\n",
        "ppl 1.9519 in 75.3s (0:01:15)\n",
        "lmgate: int8 on words: 1%, ppl 2.2 so far, 633 tokens/s, 0:01:01 left\nppl  1.9519 in 3 s\n\n",
    ],
)
def test_rounding_times_and_progress_make_no_difference(printed: str) -> None:
    assert differences(("ppl 1.9519 in 1.2 s",), printed) == ""


@pytest.mark.parametrize(
    "printed",
    ["", "ppl 1.99 in 1.2 s", "bpb 1.9519 in 1.2 s", "ppl 1.9519 in 1.2 s\nand more", "first\nppl 1.9519 in 1 s"],
)
def test_other_numbers_words_and_lines_do(printed: str) -> None:
    assert differences(("ppl 1.9519 in 1.2 s",), printed)


def test_dots_stand_for_any_lines() -> None:
    assert differences(("a", "...", "z"), "a\nb\nc\nz\n") == ""
    assert differences(("a", "..."), "a\nb\n") == ""
    assert differences(("a", "...", "z"), "a\nb\n")
    assert differences(("...", "z"), "b\nz\nmore\n")


def test_a_command_without_output_prints_nothing() -> None:
    assert differences((), "") == ""
    assert differences((), "something\n")
