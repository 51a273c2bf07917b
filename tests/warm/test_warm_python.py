"""A fork of the warm Python is a process of its own, and ends as a new interpreter does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.end_to_end.projects import environment
from tests.warm import Imported, warm_python

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system has no process descriptors")

COMMANDS = {
    "in peace": "import sys; print(sys.stdin.read(), sys.argv, __name__); print('err', file=sys.stderr)",
    "with a number": "raise SystemExit(3)",
    "with a message": "raise SystemExit('why')",
    "by an error": "raise ValueError('why')",
    "by a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "after its threads and exit functions": "import atexit, threading, time; atexit.register(print, 'last'); "
    "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start(); print('first')",
}


def run(python: str, code: str, folder: Path) -> tuple[int, str, list[str]]:
    done = subprocess.run(
        [python, "-c", code, "argument"],
        cwd=folder,
        env=environment() | {"COLOUR": "blue"},
        input="read",
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr.splitlines()[-1:]


@pytest.mark.parametrize("end", COMMANDS)
def test_a_command_ends_as_in_a_new_interpreter(end: str, tmp_path: Path) -> None:
    warm, new = (run(python, COMMANDS[end], tmp_path) for python in (warm_python(environment()), sys.executable))
    assert warm == new


@pytest.mark.parametrize(
    ("imported", "there"), [("pytest", []), ("torch", ["torch"]), ("transformers", ["torch", "transformers"])]
)
def test_no_library_is_imported_that_is_said_to_be_still_to_come(
    imported: Imported, there: list[str], tmp_path: Path
) -> None:
    code = "import sys; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    assert run(warm_python(environment(), imported), code, tmp_path) == (0, f"{there}\n", [])


def test_a_script_finds_what_is_beside_it_and_its_warnings_are_errors_where_they_shall_be(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 7")
    script = tmp_path / "script.py"
    script.write_text("import sys, warnings, beside; print(beside.VALUE, sys.argv, __name__); warnings.warn('why')")
    ended = []
    for python in (warm_python(environment()), sys.executable):
        command = [python, "-W", "error", str(script), "argument"]
        ended.append(subprocess.run(command, env=environment(), capture_output=True, text=True))
    warm, new = ((done.returncode, done.stdout, done.stderr.splitlines()[-1:]) for done in ended)
    assert warm == new == (1, f"7 {[str(script), 'argument']} __main__\n", ["UserWarning: why"])


def test_a_command_has_its_own_folder_variables_and_session_and_the_libraries_are_there(tmp_path: Path) -> None:
    code = (
        "import os, sys; print(os.getcwd(), os.environ['COLOUR'], os.getsid(0) == os.getpid(), 'torch' in sys.modules)"
    )
    assert run(warm_python(environment()), code, tmp_path) == (0, f"{tmp_path} blue True True\n", [])


def test_what_a_command_changes_does_not_reach_the_next(tmp_path: Path) -> None:
    change = "import os, sys, torch, warnings; torch.relu = sys.modules['mine'] = 1; os.environ['HOME'] = os.curdir; "
    change += "warnings.simplefilter('error'); torch.set_default_dtype(torch.float64)"
    look = "import os, sys, torch, warnings; print(torch.relu, 'mine' in sys.modules, os.environ['HOME'], "
    look += "warnings.filters, torch.get_default_dtype())"
    python = warm_python(environment())
    before = run(python, look, tmp_path)
    assert run(python, change, tmp_path)[0] == 0
    assert run(python, look, tmp_path) == before


def test_killing_what_stands_in_for_python_kills_the_fork(tmp_path: Path) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    command = [warm_python(environment()), "-c", code]
    process = subprocess.Popen(command, env=environment(), cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    end = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end, "the fork lives on"
        time.sleep(0.02)
