"""What the names in a gate mean: an entry of lmgate.yaml before a path before a hub id.

``org/name`` is a path where there is such a file or folder, or where its first part is a folder of the project: then
the second is misspelt or not there yet, and what lies on the hub under that name would be a stranger's.
"""

from __future__ import annotations

__all__ = ["Names"]

import contextlib
from collections.abc import Mapping
from pathlib import Path

from pytest_lmgate.config.file import Project
from pytest_lmgate.config.specs import DATA_SUFFIXES, DatasetSpec, ModelSpec
from pytest_lmgate.errors import ConfigError, nearest


class Names:
    """The names of a project."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def model_spec(self, model: str | Path) -> tuple[str, ModelSpec]:
        """Return the name and spec of a model given by a name of lmgate.yaml, a path or a hub id.

        Raises:
            ConfigError: It is none of these.
        """
        known = self._project.spec.models
        if isinstance(model, str) and model in known:
            return model, known[model]
        if isinstance(model, Path):
            return str(model), ModelSpec(path=str(model))
        self._refuse_text("model", model)
        if self._is_path(model):
            return model, ModelSpec(path=model)
        if model.startswith("hub:") or model.count("/") == 1:
            self._require_no_folder("model", model)
            repo, revision = _hub_id(model)
            return model, ModelSpec(hub=repo, revision=revision)
        raise ConfigError(self._unknown("model", model))

    def dataset_spec(self, dataset: str | Path) -> tuple[str, DatasetSpec]:
        """Return the name and spec of a dataset given by a name of lmgate.yaml, a path or a hub id.

        A text with the suffix of a data file is a path.

        Raises:
            ConfigError: It is none of these.
        """
        known = self._project.spec.datasets
        if isinstance(dataset, str) and dataset in known:
            return dataset, known[dataset]
        if isinstance(dataset, Path):
            return str(dataset), DatasetSpec(path=str(dataset))
        self._refuse_text("dataset", dataset)
        is_hub_id = dataset.startswith("hub:")
        if not is_hub_id and (self._is_path(dataset) or self._is_file(dataset)):
            return dataset, DatasetSpec(path=dataset)
        if is_hub_id or dataset.count("/") == 1:
            self._require_no_folder("dataset", dataset)
            return dataset, DatasetSpec(hub=dataset.removeprefix("hub:"))
        raise ConfigError(self._unknown("dataset", dataset))

    def hub_id(self, tokenizer: str) -> tuple[str, str | None] | None:
        """Return the repository and revision of a tokenizer on the hub; None where a path is written.

        Raises:
            ConfigError: The first part of its name is a folder of the project.
        """
        if self._is_path(tokenizer):
            return None
        self._require_no_folder("tokenizer", tokenizer)
        return _hub_id(tokenizer)

    def _is_path(self, given: str) -> bool:
        """Whether it is written as only a path is, or exists."""
        if given.startswith("hub:"):
            return False
        if given.startswith((".", "/", "~")) or given.count("/") > 1:
            return True
        return "/" in given and self._exists(given)

    def _require_no_folder(self, what: str, given: str) -> None:
        """Refuse a hub id whose first part is a folder of the project."""
        top, _, inner = given.partition("/")
        if given.startswith("hub:") or not inner or not self._project.path(top).is_dir():
            return
        there: list[str] = []
        with contextlib.suppress(OSError):
            there = [path.name for path in self._project.path(top).iterdir()]
        raise ConfigError(
            f"{what} {given!r}: there is no {inner} in {self._project.path(top)}{nearest(inner, there)}; "
            f"check the path, or name it in lmgate.yaml; a hub id of that name is written hub:{given}"
        )

    def _is_file(self, given: str) -> bool:
        suffix = Path(given).suffix
        return suffix.lower() in DATA_SUFFIXES or (bool(suffix) and self._exists(given))

    def _exists(self, given: str) -> bool:
        try:
            return self._project.path(given).exists()
        except PermissionError:
            return True  # reading it says why it cannot be

    def _refuse_text(self, what: str, given: str) -> None:
        """Refuse a text that is too long for a path or has several lines: a name was expected."""
        with contextlib.suppress(ConfigError):
            self._project.path(given)
            if "\n" not in given:
                return
        raise ConfigError.of(
            what,
            f"expected a name of lmgate.yaml, a path or a hub id, got {len(given):,} characters that begin "
            f"{given[:40]!r}" + ("; put texts in a list: [text]" if what == "dataset" else ""),
        )

    def _unknown(self, what: str, given: str) -> str:
        tables: dict[str, Mapping[str, object]] = {
            "model": self._project.spec.models,
            "dataset": self._project.spec.datasets,
        }
        known, other = tables.pop(what), *tables
        origin, names = self._project.file, ", ".join(known) or "none"
        where = f"; {origin} has under {what}s: {names}" if origin else f", as {self._project.origin}"
        if given in tables[other]:
            return f"{what} {given!r} is a {other}, but a {what} is expected here{where}"
        one = "one of these, a path" if origin else "a path"
        text = "; a text goes in a list: [text]" if what == "dataset" and " " in given else ""
        return (
            f"{what} {given!r} is not known{nearest(given, known)}{where}; give {one} "
            f"(./{'folder' if what == 'model' else 'file'}) or a hub id (hub:org/name){text}"
        )


def _hub_id(written: str) -> tuple[str, str | None]:
    """Return the repository and revision of ``hub:org/name@revision``; ``hub:`` and the revision may be missing."""
    repo, _, revision = written.removeprefix("hub:").partition("@")
    return repo, revision or None
