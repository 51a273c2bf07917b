"""`ModelSource`: a model that is described and not loaded: the ingredients of its addresses, and how to load it."""

from __future__ import annotations

__all__ = ["ModelSource"]

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_lmgate.cache.fingerprint import Fingerprint
from pytest_lmgate.engine.checkpoint import Architecture
from pytest_lmgate.identity.libraries import LIBRARIES, QUANTIZERS

if TYPE_CHECKING:
    from pytest_lmgate.engine.loading import LoadedModel


@dataclass(frozen=True)
class ModelSource:
    """A model, not yet loaded.

    Attributes:
        name: As the user wrote it.
        architecture: What its config says.
        ingredients: Everything of it that can change a number.
        load: Loads it.
        device: Where it will run.
        weight_bytes: About what its weights take.
        batch_size: Windows per batch, or ``auto``.
        in_memory: Whether it is the user's own object, which lives as long as the user wants.
        not_kept: Why its measurements may not be kept, in words; empty if they may.
        changed: Returns the files that are no longer those that the ingredients tell of.
    """

    name: str
    architecture: Architecture
    ingredients: Mapping[str, str]
    load: Callable[[], LoadedModel]
    device: str
    weight_bytes: int
    batch_size: int | str
    in_memory: bool = False
    not_kept: str = ""
    changed: Callable[[], Sequence[str]] = tuple

    @property
    def identity(self) -> str:
        """Digest of what it is, wherever it runs: its ingredients less the device and the libraries' versions."""
        where = {"device", "session", *QUANTIZERS, *LIBRARIES, "python"}
        return Fingerprint.of(
            "model", {key: each for key, each in self.ingredients.items() if key not in where}
        ).address
