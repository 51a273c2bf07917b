"""A fork of the warm Python is a process of its own, and ends as a new interpreter does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.projects import environment
from tests.warm import warm_python

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system has no process descriptors")

COMMANDS = {
    "in peace": "import sys; print(sys.stdin.read(), sys.argv, __name__); print('err', file=sys.stderr)",
    "with a number": "raise SystemExit(3)",
    "by an error": "raise ValueError('why')",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "after its threads and exit functions": "import atexit, threading, time; atexit.register(print, 'last'); "
    "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start(); print('first')",
}


def run(python: str, code: str, folder: Path) -> tuple[int, str, list[str]]:
    command, given = [python, "-c", code, "argument"], environment() | {"COLOUR": "blue"}
    done = subprocess.run(command, cwd=folder, env=given, input="read", capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr.splitlines()[-1:]


@pytest.mark.parametrize("end", COMMANDS)
def test_a_command_ends_as_in_a_new_interpreter(end: str, tmp_path: Path) -> None:
    warm, new = (run(python, COMMANDS[end], tmp_path) for python in (warm_python(environment()), sys.executable))
    assert warm == new


def test_what_a_command_changes_does_not_reach_the_next(tmp_path: Path) -> None:
    change = "import os, sys, torch, warnings; torch.relu = sys.modules['mine'] = 1; os.environ['HOME'] = os.curdir; "
    change += "warnings.simplefilter('error'); torch.set_default_dtype(torch.float64)"
    look = "import os, sys, torch, warnings; print(torch.relu, 'mine' in sys.modules, os.environ['HOME'], "
    look += "warnings.filters, torch.get_default_dtype(), os.getcwd(), os.environ['COLOUR'])"
    python = warm_python(environment())
    before = run(python, look, tmp_path)
    assert f"{tmp_path} blue" in before[1]
    assert run(python, change, tmp_path)[0] == 0
    assert run(python, look, tmp_path) == before
