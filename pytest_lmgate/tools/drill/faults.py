"""The table of faults: those of this package, and those that installed packages register."""

from __future__ import annotations

from importlib.metadata import entry_points

from pytest_lmgate.errors import ConfigError, nearest
from pytest_lmgate.tools.drill.planting import Fault
from pytest_lmgate.tools.drill.structure import STRUCTURE
from pytest_lmgate.tools.drill.texts import TEXTS
from pytest_lmgate.tools.drill.weights import WEIGHTS

GROUP = "pytest_lmgate.faults"
"""The group of entry points that register faults."""


def known_faults() -> dict[str, Fault]:
    """Return all faults by name: those of this package, and those that installed packages register.

    An entry point of the group ``pytest_lmgate.faults`` is a `Fault`, or returns one when it is called.
    """
    faults = {fault.name: fault for fault in (*WEIGHTS, *STRUCTURE, *TEXTS)}
    for entry in entry_points(group=GROUP):
        loaded = entry.load()
        fault = loaded if isinstance(loaded, Fault) else loaded()
        if not isinstance(fault, Fault) or fault.name in faults:
            raise ConfigError(
                f"entry point {entry.name} of {GROUP}: expected a Fault with a name of its own, got {fault!r:.80}"
            )
        faults[fault.name] = fault
    return faults


def chosen_faults(names: str | None) -> list[Fault]:
    """Return the faults with these names, written with commas between; a name may be a kind, and none means all."""
    faults = known_faults()
    if names is None:
        return list(faults.values())
    chosen: dict[str, Fault] = {}
    kinds = {fault.kind for fault in faults.values()}
    for name in map(str.strip, names.split(",")):
        matching = {key: fault for key, fault in faults.items() if name in (key, fault.kind)}
        if not matching:
            hint = nearest(name, [*faults, *kinds])
            raise ConfigError(f"--faults: no fault is called {name!r}{hint}; there are {', '.join(faults)}")
        chosen |= matching
    return list(chosen.values())
