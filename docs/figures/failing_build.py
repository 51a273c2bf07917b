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
    """Run pytest in the current folder and draw what it printed the second time, when all is measured."""
    environment = {"COLUMNS": str(COLUMNS), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", *COMMAND], capture_output=True, text=True, env=environment, check=False
        )
    printed = re.sub(r"\n{3,}", "\n\n", done.stdout).strip()
    with Path("/dev/null").open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere)
        console.print(Text.from_ansi(f"$ {' '.join(COMMAND[:4])}\n{printed}"), soft_wrap=False)
    # Without the fonts that it would fetch.
    drawn = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="pytest"), flags=re.DOTALL)
    Path(__file__).with_name("failing-build.svg").write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
