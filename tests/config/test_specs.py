"""What specs accept. What they refuse is tested through lmgate.yaml."""

from __future__ import annotations

import pytest

from pytest_lmgate.config.specs import DatasetSpec, ModelSpec


@pytest.mark.parametrize("suffix", [".txt", ".raw", ".text", ".md"])
def test_every_kind_of_text_file_can_be_read_by_lines(suffix: str) -> None:
    assert DatasetSpec(path=f"data/a{suffix}", lines=True).lines


def test_a_path_may_have_a_revision() -> None:
    assert ModelSpec(path="models/a", revision="2").revision == "2"
