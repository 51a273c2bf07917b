"""Runs the commands of a page of the docs, and compares what they print with what the page says.

A page is run from top to bottom, in a folder of its own:

* a ``console`` block is run: each line that begins with ``$ `` is a command, and the lines after it are what it prints;
* a block with ``title="FILE"`` is written to that file;
* what an HTML comment ``<!-- before: ... -->`` says is run by the shell and not compared; readers do not see it.

``python tests/docs/pages.py docs/tutorial.md`` shows what the commands of a page print now.
"""

import dataclasses
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOWN_FOLDER = "/home/me/project"

_PART = re.compile(
    r'^```(?P<kind>\w+)(?: title="(?P<file>[^"]+)")?\n(?P<body>.*?)^```$|^<!-- before:(?P<before>.*?)-->$', re.M | re.S
)
# What differs from run to run: durations, sizes, addresses, dates, and how far a line is drawn.
_CHANGING = {
    r"\b[\d.]+ ?(?:s|ms|min|h)\b(?: \(\d+:\d\d:\d\d\))?": "TIME",  # pytest says minutes again, from one on
    r"\b\d+\.\d(?= *$| +\|)": "TIME",  # the column "seconds"
    r"\b[\d.]+ [kMG]B\b": "SIZE",
    r"\b[0-9a-f]{12,40}\b": "HASH",
    r"\b\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?(?:\+\d\d:\d\d)?)?": "DATE",
    r"[=_█]{2,}": "LINE",
    r" *\| *-*o?-* *\|| *(?<!\S)-*o-*(?!\S)": "PLOT",
}
_NUMBER = re.compile(r"(\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)")
# A slow machine tells how far it is.
_PROGRESS = re.compile(r"lmgate: .*( so far, .* left|: \d+ of .*measurements.*)")
# Other processors round otherwise, and what a model of few bits loses is made of nothing else: a number may differ by
# this share, one that is given as "about" by more, and a fraction by so many units of its last digit.
_SHARE, _ABOUT, _UNITS = 0.01, 0.1, 2


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of a page, and the lines that it prints there."""

    line: int
    script: str
    printed: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class File:
    """A file that a page shows."""

    path: str
    text: str


@dataclasses.dataclass(frozen=True)
class Before:
    """What is done before the next command, unseen."""

    script: str


def steps(page: str) -> Iterator[Command | File | Before]:
    """What a page says to do, from top to bottom."""
    for part in _PART.finditer(page):
        line = page[: part.start()].count("\n") + 2
        if part["before"] is not None:
            yield Before(part["before"])
        elif part["file"] is not None:
            yield File(part["file"], part["body"])
        elif part["kind"] == "console":
            yield from _commands(part["body"].splitlines(), line)


def _commands(lines: list[str], first: int) -> Iterator[Command]:
    starts = [index for index, line in enumerate(lines) if line.startswith("$ ")]
    assert starts[:1] == [0], f"line {first}: a console block begins with a command"
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield Command(first + start, lines[start][2:], tuple(lines[start + 1 : end]))


class Folder:
    """A folder in which the commands of one page are run; `warm` runs pytest and lmgate, if it is given."""

    def __init__(self, path: Path, environment: Mapping[str, str], warm: str = sys.executable) -> None:
        programs = path / "programs"
        self.path = path / "project"
        for folder in (programs, self.path):
            folder.mkdir()
        commands = {"pytest": f'"{warm}" -m pytest', "lmgate": f'"{warm}" -m pytest_lmgate.cli'}
        for name, command in {**commands, "python": f'"{sys.executable}"'}.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (programs / name).chmod(0o755)
        self.environment = {
            **environment,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "EXAMPLE": str(ROOT / "example_project"),
            "COLUMNS": "120",
            "HF_HUB_OFFLINE": "1",
            **{f"GIT_{who}_{what}": "me@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }

    def run(self, script: str) -> tuple[int, str]:
        """The exit code of a script, and what it printed to both streams, with the folder's path as a page shows it."""
        done = subprocess.run(
            ["bash", "-c", f"exec 2>&1\n{script}"],
            cwd=self.path,
            env=self.environment,
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=600,
            check=False,
        )
        return done.returncode, done.stdout.replace(str(self.path), SHOWN_FOLDER)

    def do(self, step: Command | File | Before) -> str:
        """Do a step; return what it printed. What the reader does not see must succeed."""
        if isinstance(step, File):
            file = self.path / step.path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(step.text)
            return ""
        code, printed = self.run(step.script)
        assert code == 0 or isinstance(step, Command), f"{step.script.strip()}: exit code {code}\n{printed}"
        return printed


def differences(said: tuple[str, ...], printed: str) -> str:
    """What the page says and the command did not print, or the other way round; empty where they agree.

    A line ``...`` stands for any lines. Numbers may differ as other processors round; times, sizes, hashes and dates
    are not compared.
    """
    left = [line for line in printed.splitlines() if line.strip() and not _PROGRESS.match(line)]
    rest_may_differ = False
    for line in filter(str.strip, said):
        if line.strip() == "...":
            rest_may_differ = True
            continue
        found = next((index for index, other in enumerate(left) if _alike(line, other)), None)
        if found is None or (found and not rest_may_differ):
            return f"the page says\n    {line}\nand the command printed\n" + "\n".join(f"    {each}" for each in left)
        left = left[found + 1 :]
        rest_may_differ = False
    rest = "".join(f"\n    {each}" for each in left)
    return "" if not left or rest_may_differ else f"the command printed more:{rest}"


def missing(block: str, printed: str) -> str:
    """As `differences`, of a block that shows a part of what was printed, without drawn lines and what says when."""
    said, lines = (
        [line.strip("= ") for line in text.splitlines() if not line.startswith("  measured")]
        for text in (block, printed)
    )
    return differences(("...", *said, "..."), "\n".join(lines))


def _alike(said: str, printed: str) -> bool:
    ours, theirs = (_NUMBER.split(_steady(line)) for line in (said, printed))
    return len(ours) == len(theirs) and all(
        _same_number(a, b, _ABOUT if ours[index - 1].endswith("about ") else _SHARE)
        if index % 2
        else a.split() == b.split()
        for index, (a, b) in enumerate(zip(ours, theirs, strict=True))
    )


def _steady(line: str) -> str:
    for pattern, name in _CHANGING.items():
        line = re.sub(pattern, f" {name} ", line)
    return line


def _same_number(a: str, b: str, share: float) -> bool:
    x, y = (float(each.replace(",", "")) for each in (a, b))
    decimals = min(len(each.partition(".")[2]) for each in (a, b))
    units = _UNITS * 10.0**-decimals if decimals and "e" not in a + b else 0.0
    return math.isclose(x, y, rel_tol=share, abs_tol=units + 1e-9)


def main() -> None:
    """Print what the commands of the pages named on the command line print now."""
    import tempfile

    for page in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as path:
            folder = Folder(Path(path), os.environ)
            for step in steps(Path(page).read_text(encoding="utf-8")):
                printed = folder.do(step)
                if isinstance(step, Command):
                    told = differences(step.printed, printed)
                    print(f"{page}:{step.line}: {'DIFFERS' if told else 'as it says'}\n$ {step.script}\n{printed}")


if __name__ == "__main__":
    main()
