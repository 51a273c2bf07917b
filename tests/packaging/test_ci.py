"""`.ci/run` with targets of make that do nothing: each leg runs, or fails the run, or was left out by name."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Each leg with its environment: two share one.
MAKEFILE = """
legs:
\t@printf "%s\\n" "quick shared" "wrong shared" "broken lacking" "slow last"
install lint example docs install-last test-quick:
\t@true
install-shared:
\t@echo "installed once"
test:
\t@echo "=== 5 passed in 1.0s ==="
install-lacking test-wrong:
\t@exit 1
test-broken:
\t@echo "tested without an environment"
test-slow:
\t@sleep 60
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the script and a Makefile."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    (tmp_path / "Makefile").write_text(MAKEFILE)
    return tmp_path


def run(clone: Path, *arguments: str, seconds: int = 60) -> tuple[int, str, list[str]]:
    """Return the exit status, what was printed, and the errors."""
    env = {**os.environ, "CI_SECONDS": str(seconds)}
    done = subprocess.run([clone / ".ci" / "run", *arguments], env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr.splitlines()


def without(*legs: str) -> list[str]:
    return [word for leg in legs for word in ("--without", leg)]


def test_a_leg_that_is_wrong_or_cannot_be_installed_fails_the_run(clone: Path) -> None:
    status, printed, errors = run(clone, *without("slow"))
    assert status == 1
    assert [line for line in errors if line.startswith("failed: ")] == [
        "failed: test-wrong: it ended with an error",
        "failed: test-broken: its environment cannot be installed",
    ]
    assert printed.count("installed once") == 1
    assert "tested without" not in printed
    assert printed.splitlines()[-1] == "=== 5 passed in 1.0s ==="


def test_a_leg_without_time_fails_the_run(clone: Path) -> None:
    status, _, errors = run(clone, *without("broken", "wrong"), seconds=2)
    assert status == 1
    assert "failed: test-slow: no time is left" in errors


def test_legs_are_left_out_by_name_alone(clone: Path) -> None:
    status, printed, errors = run(clone, *without("broken", "wrong", "slow"))
    assert (status, errors) == (0, [])
    assert "== make test-quick" in printed
    assert "left out, as told: test-broken" in printed
    for arguments in (["--without", "vlm"], ["--without"], ["broken"]):
        status, _, errors = run(clone, *arguments)
        assert status == 2
        assert arguments[-1] in errors[0]
