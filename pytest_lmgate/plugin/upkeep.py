"""What becomes of the baseline file at the end of a session; only the controller writes it."""

from __future__ import annotations

__all__ = ["keep_baseline"]

import pytest

from pytest_lmgate.plugin import options
from pytest_lmgate.plugin.ledger import Ledger
from pytest_lmgate.plugin.selection import asks_for_all, was_stopped


def keep_baseline(ledger: Ledger, session: pytest.Session) -> tuple[list[str], list[str]]:
    """Write the entries of gates that ran, and after a full run find those that no gate uses.

    Sessions without gates pay nothing: they look at the file only if they are to update it.

    Returns:
        What to say, and what went wrong.
    """
    config = session.config
    path, updating = options.baseline_file(config), options.update(config)
    full = not ledger.deselected and not was_stopped(session) and asks_for_all(config)
    # The last gate that went by the baseline may be gone: then nobody but the file knows of its entry.
    to_look_at = {
        "all": session.testscollected > 0,
        "new": bool(ledger.by_baseline),
        "": bool(ledger.expected) and path.exists(),
    }
    if not ledger.entries and not (full and to_look_at[updating]):
        return [], []
    from pytest_lmgate.errors import BaselineError
    from pytest_lmgate.plugin.baselines import unused, update_file

    try:
        if updating:
            used = ledger.used if full and updating == "all" else None
            return update_file(path, ledger.entries, used=used, unknown=ledger.uncollected), []
        names = unused(path, ledger.used, ledger.uncollected)
        return [f"baseline {path.name}: no gate uses {name}; remove it by --lmgate-update" for name in names], []
    except (BaselineError, OSError) as error:
        return [], [f"the baseline was not written: {error}"]
