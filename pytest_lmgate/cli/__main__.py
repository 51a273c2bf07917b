"""``python -m pytest_lmgate.cli``, for environments whose scripts are not on the path."""

from __future__ import annotations

from pytest_lmgate.cli.app import main

if __name__ == "__main__":
    main()
