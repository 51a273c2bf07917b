"""How specs speak of themselves in messages. What they refuse is tested through lmgate.yaml."""

from __future__ import annotations

import pytest

from pytest_lmgate.config.specs import DatasetSpec, ModelSpec


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        (ModelSpec(path="models/a"), "models/a"),
        (ModelSpec(hub="org/name"), "hub:org/name"),
        (ModelSpec(hub="org/name", revision="v1"), "hub:org/name@v1"),
        (DatasetSpec(path="data/a.txt"), "data/a.txt"),
        (DatasetSpec(hub="org/data"), "hub:org/data"),
        (DatasetSpec(hub="org/data", name="plain", split="test"), "hub:org/data/plain/test"),
    ],
)
def test_a_spec_says_where_it_points(spec: ModelSpec | DatasetSpec, where: str) -> None:
    assert spec.where == where


@pytest.mark.parametrize("suffix", [".txt", ".raw", ".text", ".md"])
def test_every_kind_of_text_file_can_be_read_by_lines(suffix: str) -> None:
    assert DatasetSpec(path=f"data/a{suffix}", lines=True).lines


def test_a_path_may_have_a_revision() -> None:
    assert ModelSpec(path="models/a", revision="2").revision == "2"
