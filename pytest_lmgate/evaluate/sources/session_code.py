"""The session's code beside a model: patches, code that nothing identifies, and the revision that stands for it."""

from __future__ import annotations

__all__ = ["SessionCode"]

import uuid
from dataclasses import replace
from typing import Any

from pytest_lmgate.backends.base import Model
from pytest_lmgate.identity.code import find_patched_libraries, summarize


class SessionCode:
    """Tells of each model whether its measurements may be kept.

    The user's code may run, and patch a library, whenever a test runs. So the session's code is looked at for each
    model, but for gates between which no code of the user's runs: these share what is found and what they measure.
    """

    def __init__(self) -> None:
        self._patches: tuple[str, ...] | None = None
        self._marks: dict[str, tuple[str, Any]] | None = None

    def forget(self, *, share: bool) -> None:
        """Look at the session's code again; with `share`, only once until `forget` is called again."""
        self._patches, self._marks = None, {} if share else None

    def applied(self, model: Model, revision: str | None, key: str, held: Any = None) -> Model:
        """Add the session's code to a model: the revision that stands for it, or why nothing may be kept.

        Args:
            model: The model.
            revision: The text that the user changes with the code; None without.
            key: Identifies the model as long as measurements are shared; of a model without content, in all sessions.
            held: Kept as long, so that no other object gets its id, which may be in `key`.
        """
        patched = self._patches if self._marks is not None and self._patches is not None else find_patched_libraries()
        self._patches = patched
        reason = model.not_kept
        if model.content is None and not reason:
            reason = "its engine gives no digest of the model"
        if not (patched or reason or revision is not None):
            return model
        added = {"patches": "; ".join(patched)} if patched else {}
        if revision is not None:
            # Two models of which nothing else is known, as two servers, may have the same revision.
            known = {"entry": key} if model.content is None else model.content
            return replace(model, content={**known, **added, "revision": revision}, not_kept="")
        # No other measurement has this address: a mark is never used again.
        mark = uuid.uuid4().hex
        if self._marks is not None:
            mark, _ = self._marks.setdefault(key, (mark, held))
        reason = reason or f"this session patched {summarize(patched)}"
        content = None if model.content is None else {**model.content, **added}
        return replace(model, content=content, runtime={**model.runtime, "session": mark}, not_kept=reason)
