"""The scripts of benchmarks/ import each other as neighbours, as Python does when one of them is run."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
