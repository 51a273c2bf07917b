"""What a session without gates pays for the plugin: processor time with and without it, in turn, and imports.

    python benchmarks/startup.py --runs 30

Both sides load one plugin by its name, since pytest then looks through all installed packages: ours, or an empty one.
Exits with 1 if a requirement is broken, unless --no-check is given.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MILLISECONDS = 10.0
HEAVY = {"torch", "transformers", "datasets", "numpy", "pyarrow", "scipy", "msgspec", "yaml"}
_WITH = ("-p", "pytest_lmgate.plugin")
_WITHOUT = ("-p", "empty_plugin")
_CONFTEST = """
import sys

def pytest_unconfigure():
    print("IMPORTED", *sorted(name for name in sys.modules if "." not in name))
"""


def main() -> None:
    """Run both in turn and compare medians."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--runs", type=int, default=30)
    cli.add_argument("--no-check", action="store_true")
    arguments = cli.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "conftest.py").write_text(_CONFTEST)
        (folder / "empty_plugin.py").write_text("")
        (folder / "test_nothing.py").write_text("def test_nothing(): pass\n")
        before = set(folder.iterdir())
        seconds: dict[tuple[str, ...], list[float]] = {_WITHOUT: [], _WITH: []}
        for side in seconds:
            _run(folder, side)  # compiles
        for _ in range(arguments.runs):
            for side, taken in seconds.items():
                before_run = _processor_seconds()
                output = _run(folder, side)
                taken.append(_processor_seconds() - before_run)
        extra = [(b - a) * 1000 for a, b in zip(seconds[_WITHOUT], seconds[_WITH], strict=True)]
        imported = set(output.partition("IMPORTED ")[2].split()) & HEAVY
        files = set(folder.iterdir()) - before - {folder / "__pycache__"}
    added = statistics.median(extra)
    alone = statistics.median(seconds[_WITHOUT])
    print(f"processor time: pytest alone {alone * 1000:.0f} ms, runs {arguments.runs}, in turn")
    print(f"the plugin adds {added:.1f} ms (median of pairs); required: at most {MILLISECONDS:.0f} ms")
    print(f"it imports of {', '.join(sorted(HEAVY))}: {', '.join(sorted(imported)) or 'none'}; required: none")
    print(f"it writes: {', '.join(path.name for path in files) or 'nothing'}; required: nothing")
    if not arguments.no_check and (added > MILLISECONDS or imported or files):
        raise SystemExit(1)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(folder: Path, plugin: tuple[str, ...]) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


if __name__ == "__main__":
    main()
