"""The way of one `ppl_max` from pytest's hook to the model's forward, and through `Evaluator.evaluate`.

    python benchmarks/way.py [-v]

Runs the first gate of the example in a pytest process with a profile hook, without a cache. Counted are functions of
this package: the frames when a measurement (no trial before it) first enters the forward of a transformers model, and
the files that such functions are in from the hook on. Then what somebody walks who reads each function once, at its
first call within `Evaluator.evaluate`: stays in a file of `measure`, `settings` and `metrics`, and returns to one that
was left; the rooms below these are not followed. `-v` lists the stays. Exits with 1 if a requirement is broken.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import tempfile
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

FRAMES, FILES, STAYS, RETURNS = 12, 35, 25, 10
_OURS, _HOOK, _LOOP = "/pytest_lmgate/", "pytest_runtest_setup", "run_batches"
_WALKED = "measure/", "settings/", "metrics/"
_GATE = "test_model_quality.py::test_the_candidate_is_good_enough"


def pytest_configure(config: Any) -> None:
    """Count in this process, which `main` has started with this file as a plugin."""
    files: set[str] = set()
    frames: list[tuple[str, str]] = []
    reached: list[int] = []  # number of files when the forward was entered
    read: dict[Any, tuple[str, str]] = {}  # functions in the order of their first calls in `evaluate`
    walk: list[str] = []  # that `evaluate` was called, and that it returned

    def profile(frame: Any, event: str, _: object) -> None:
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if event in ("call", "return") and name == "evaluate" and file.endswith("measure/evaluator.py"):
            walk.append(event)
        if walk and event == "call" and not name.startswith(("__", "<")):
            inside = file.rpartition(_OURS)[2]
            if inside.startswith(_WALKED):
                read.setdefault(frame.f_code, (inside, name))
        if len(walk) == 2:
            sys.setprofile(None)
            found = {"frames": frames, "files": reached[0], "read": list(read.values())}
            Path("way.json").write_text(json.dumps(found))
        if event == "call" and _OURS in file and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            if files or name == _HOOK:
                files.add(file)
        elif event == "call" and name == "forward" and "transformers/models" in file:
            stack = [frame]
            while stack[-1].f_back is not None:
                stack.append(stack[-1].f_back)
            ours = [each for each in reversed(stack) if _OURS in each.f_code.co_filename]
            if not frames and any(each.f_code.co_name == _LOOP for each in ours):
                frames.extend((each.f_code.co_filename.rpartition(_OURS)[2], each.f_code.co_name) for each in ours)
                reached.append(len(files))

    sys.setprofile(profile)


def main() -> int:
    example = Path(__file__).parents[1] / "example_project"
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(__file__).parent), str(example)]
        code = f"import sys; sys.path[:0] = {paths!r}; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
        options = [
            "-q",
            "-p",
            "way",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(example),
            f"--lmgate-cache={folder}/cache",
        ]
        command = [sys.executable, "-c", code, *options, str(example / _GATE)]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        found = json.loads(Path(folder, "way.json").read_text())
    for number, (file, name) in enumerate(found["frames"], 1):
        print(f"{number:2} {file} {name}")
    walked = [(file, [name for _, name in some]) for file, some in groupby(found["read"], key=itemgetter(0))]
    for number, (file, names) in enumerate(walked if "-v" in sys.argv else [], 1):
        print(f"{number:2} {file}: {', '.join(names)}")
    frames, files, stays = len(found["frames"]), found["files"], len(walked)
    returns = stays - len({file for file, _ in walked})
    print(f"{frames} frames ({FRAMES} at most), {files} files ({FILES} at most)")
    print(f"{stays} stays ({STAYS} at most), {returns} returns ({RETURNS} at most)")
    return int(frames > FRAMES or files > FILES or stays > STAYS or returns > RETURNS)


if __name__ == "__main__":
    sys.exit(main())
