"""What every test may use: real data where it is there, small deterministic models where not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is no fault of an example.
settings.register_profile("lmgate", deadline=None)
settings.load_profile("lmgate")

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real weights, texts and oracle tables, which is not part of the project."""
    if not SHARED.is_dir():
        pytest.skip(f"shared data is absent: no folder {SHARED}; real models and oracles are NOT checked")
    return SHARED
