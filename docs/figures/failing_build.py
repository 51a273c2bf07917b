"""Draws docs/figures/failing-build.svg: what pytest prints when the example's broken candidates are gated.

    cd example_project && python ../docs/figures/failing_build.py
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 110
COMMAND = ["pytest", "watch_it_fail.py", "-k", "three_bits", "--color=yes", "--no-header", "-p", "no:cacheprovider"]


def main() -> None:
    """Run pytest in the current folder and draw what it printed."""
    environment = {"COLUMNS": str(COLUMNS), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-m", *COMMAND], capture_output=True, text=True, env=environment, check=False)
    printed = re.sub(r"\n{3,}", "\n\n", done.stdout).strip()
    with Path("/dev/null").open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere)
        console.print(Text.from_ansi(f"$ {' '.join(COMMAND[:4])}\n{printed}"), soft_wrap=False)
    console.save_svg(str(Path(__file__).with_name("failing-build.svg")), title="pytest")


if __name__ == "__main__":
    main()
