"""What of a device is in an address: everything of it that can change a number, and nothing else."""

from collections.abc import Callable, Iterator

import pytest
import torch

from pytest_lmgate.engines import devices
from pytest_lmgate.engines.devices import Card, device_ingredients

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def h100(monkeypatch: Patch) -> Iterator[None]:
    """Two H100s, and torch's settings as they were afterwards."""
    monkeypatch.setattr(devices, "cards", lambda: (Card("NVIDIA H100", "9.0"),) * 2)
    monkeypatch.setattr(devices, "_torch_build", lambda: ("cuda", "13.0"))
    for name in devices._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    before, matmul = torch.get_float32_matmul_precision(), torch.backends.cuda.matmul
    reduced = matmul.allow_bf16_reduced_precision_reduction
    yield
    torch.set_float32_matmul_precision(before)
    matmul.allow_bf16_reduced_precision_reduction = reduced


def card(*named: str) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(devices, "cards", lambda: (Card(*named),) * 2)


OTHER: dict[str, Callable[[Patch], object]] = {
    "name": card("NVIDIA H200", "9.0"),
    "capability": card("NVIDIA H100", "10.0"),
    "cuda": lambda patch: patch.setattr(devices, "_torch_build", lambda: ("cuda", "12.8")),
    "rocm": lambda patch: patch.setattr(devices, "_torch_build", lambda: ("hip", "13.0")),
    "tf32": lambda _: torch.set_float32_matmul_precision("high"),
    "sums in bfloat16": lambda _: setattr(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    **{name: lambda patch, name=name: patch.setenv(name, "1") for name in devices._VARIABLES},  # type: ignore[misc]
}
SAME: dict[str, Callable[[Patch], object]] = {
    "visible": lambda patch: patch.setenv("CUDA_VISIBLE_DEVICES", "1,0"),
    "threads": lambda patch: patch.setenv("OMP_NUM_THREADS", "3"),
    "the default, written down": lambda _: torch.set_float32_matmul_precision("highest"),
    "one card of several": lambda patch: patch.setattr(devices, "cards", lambda: (Card("NVIDIA H100", "9.0"),)),
}


@pytest.mark.parametrize("what", OTHER)
def test_each_is_part_of_a_gpus_address(monkeypatch: Patch, what: str) -> None:
    before = device_ingredients("cuda:0")
    OTHER[what](monkeypatch)
    assert device_ingredients("cuda:0") != before


@pytest.mark.parametrize("what", SAME)
def test_nothing_else_is(monkeypatch: Patch, what: str) -> None:
    before = device_ingredients("cuda")
    SAME[what](monkeypatch)
    assert device_ingredients("cuda") == before


def test_two_kinds_of_cards_in_one_machine_are_told_apart_by_their_index(monkeypatch: Patch) -> None:
    monkeypatch.setattr(devices, "cards", lambda: (Card("NVIDIA H100", "9.0"), Card("NVIDIA L4", "8.9")))
    first, second, both = (device_ingredients(each)["card"] for each in ("cuda:0", "cuda:1", "cuda"))
    assert (first, second, both) == ("NVIDIA H100, 9.0", "NVIDIA L4, 8.9", "NVIDIA H100, 9.0; NVIDIA L4, 8.9")


@pytest.mark.parametrize("device", ["cpu", "mps", "server"])
def test_a_processor_adds_nothing_but_settings_that_the_session_changed(device: str) -> None:
    assert device_ingredients(device) == {}
    torch.set_float32_matmul_precision("medium")
    assert device_ingredients(device) != {}
