"""Devices: memory that runs out, budgets, which device is taken, and what of it is in an address."""

import ctypes
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_lmgate.engines import devices
from pytest_lmgate.engines.devices import Card, device_ingredients
from pytest_lmgate.engines.transformers.runner import token_budget

Patch = pytest.MonkeyPatch
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 18.00 GB)"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("onnxruntime: Failed to allocate memory for requested buffer of size 68719476736"), True),
        (RuntimeError("bad allocation"), True),
        (RuntimeError("size mismatch"), False),
        (ValueError("out of memory"), False),
        (OSError(12), False),
    ],
)
def test_every_way_to_run_out_of_memory_is_known_and_no_other_error(error: Exception, is_it: bool) -> None:
    assert devices.is_out_of_memory(error) == is_it


def test_an_allocation_that_the_processor_refuses_is_known() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**60, dtype=torch.uint8)
    assert devices.is_out_of_memory(refused.value)


def test_the_budget_is_smaller_on_a_processor_and_where_logits_are_held_whole() -> None:
    assert token_budget(CPU) < token_budget(CUDA)
    assert token_budget(CPU, 100) == token_budget(CPU)
    whole = token_budget(CUDA, 250_000)
    assert whole * 250_000 * 4 <= 2**28 < (whole + 1) * 250_000 * 4
    assert token_budget(CPU, 2**40) == 1
    # On a GPU what a batch of tokens takes fits in 768 MiB.
    for kilobytes, tokens in ((130, 4096), (20, 32768), (0.1, 65536), (2**21, 1)):
        assert token_budget(CUDA, activation_bytes=kilobytes * 1000) == tokens


@pytest.fixture(autouse=True)
def clean_caches(monkeypatch: Patch) -> Iterator[None]:
    caches = (devices._torch_build, devices.cards, devices.share_processors)
    for cached in caches:
        cached.cache_clear()
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    yield
    monkeypatch.undo()
    for cached in caches:
        cached.cache_clear()


def install(patch: Patch, folder: Path, version: str | None) -> None:
    """Let torch be a build with this version.py."""
    if version is not None:
        (folder / "version.py").write_text(version)
    spec = types.SimpleNamespace(origin=str(folder / "__init__.py"))
    patch.setattr(devices.importlib.util, "find_spec", lambda _: spec)


def test_the_device_found_without_torch_is_the_one_torch_would_take() -> None:
    expected = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert devices.resolve_device("auto") == expected
    assert devices.resolve_device("cuda:3") == "cuda:3"


@pytest.mark.parametrize(
    ("wanted", "worker", "found"),
    [
        ("auto", 1, "cuda:1"),
        ("cuda", 4, "cuda:1"),
        ("cuda:2", 4, "cuda:2"),
        ("cpu", 1, "cpu"),
        ("auto", None, "cuda"),
    ],
)
def test_a_worker_takes_a_gpu_of_its_own_by_turns(
    monkeypatch: Patch, wanted: str, worker: int | None, found: str
) -> None:
    monkeypatch.setattr(devices, "_torch_build", lambda: ("cuda", "13.0"))
    monkeypatch.setattr(devices, "cuda_devices", lambda: 3)
    assert devices.resolve_device(wanted, worker) == found
    monkeypatch.setattr(devices, "cuda_devices", lambda: 1)
    assert devices.resolve_device(wanted, worker) == (wanted if ":" in wanted else found.partition(":")[0])


@pytest.mark.parametrize(
    ("version", "build"),
    [
        (None, ("cuda",)),  # an unusual build, of which the driver knows
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", ("cuda", "12.8")),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", ()),
        ("cuda = '11.8'\n", ("cuda", "11.8")),
    ],
)
def test_what_torch_was_built_for_is_told_by_its_version_file(
    tmp_path: Path, monkeypatch: Patch, version: str | None, build: tuple[str, ...]
) -> None:
    install(monkeypatch, tmp_path, version)
    assert devices._torch_build() == build


def test_devices_of_a_build_for_rocm_are_counted_by_torch_and_not_by_the_driver_of_cuda(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    install(monkeypatch, tmp_path, "cuda: str = None\nhip: str = '6.3'\n")
    card = types.SimpleNamespace(name="AMD Instinct MI300X", gcnArchName="gfx942")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    assert devices.cuda_devices() == 8
    assert devices.resolve_device("auto", worker=9) == "cuda:1"
    assert devices.device_ingredients("cuda:7") == {"card": "AMD Instinct MI300X, gfx942", "built for": "hip 6.3"}


@pytest.mark.parametrize(("machine", "device"), [("arm64", "mps"), ("x86_64", "cpu")])
def test_without_torch_a_mac_of_apples_has_its_own_gpu(monkeypatch: Patch, machine: str, device: str) -> None:
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(devices, "sys", types.SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(devices.platform, "machine", lambda: machine)
    assert devices.resolve_device("auto") == device


def test_where_the_system_tells_no_free_memory_half_of_the_memory_is_free(monkeypatch: Patch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError

    total = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line)
    monkeypatch.setattr(devices, "open", refuse, raising=False)
    assert devices.available_bytes("cpu") == pytest.approx(total * 512, rel=0.01)
    monkeypatch.delattr(devices.os, "sysconf")
    assert devices.available_bytes("cpu") == 2**32


def _driver(devices: int, code: int = 0) -> Any:
    """Return the part of libcuda that is asked."""

    def tell(pointer: Any, value: int) -> int:
        pointer._obj.value = value
        return 0

    def name(pointer: Any, _: int, handle: Any) -> None:
        pointer.value = f"NVIDIA H{100 * (handle.value + 1)}".encode()

    return types.SimpleNamespace(
        cuInit=lambda _: code,
        cuDeviceGetCount=lambda count: tell(count, devices),
        cuDeviceGet=tell,
        cuDeviceGetName=name,
        cuDeviceGetAttribute=lambda value, attribute, handle: tell(value, attribute - 66),
    )


def test_the_driver_tells_the_name_and_the_compute_capability_of_each_card(monkeypatch: Patch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: _driver(2))
    monkeypatch.setattr(devices, "_torch_build", lambda: ("cuda", "13.0"))
    assert devices.cards() == (("NVIDIA H100", "9.10"), ("NVIDIA H200", "9.10"))
    assert devices.hardware_of("cuda:1") == "NVIDIA H200"
    assert devices.hardware_of("cuda") == "NVIDIA H100, NVIDIA H200"


@pytest.mark.parametrize(
    ("driver", "visible", "found"),
    [
        (_driver(0), None, 0),
        (_driver(2, code=100), None, 0),
        (None, None, 0),
        (_driver(2), "0,1", 2),
        (_driver(2), "", 0),
        (_driver(2), "-1", 0),
    ],
)
def test_the_driver_is_asked_how_many_devices_there_are(
    monkeypatch: Patch, driver: Any, visible: str | None, found: int
) -> None:
    def library(_: str) -> Any:
        if driver is None:
            raise OSError("libcuda.so.1: cannot open shared object file")
        return driver

    monkeypatch.setattr(ctypes, "CDLL", library)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices.cuda_devices() == found


@pytest.mark.parametrize(("workers", "given", "threads"), [(1, None, 8), (2, None, 4), (16, None, 1), (2, "8", 8)])
def test_processes_share_the_processors_unless_the_user_decides(
    monkeypatch: Patch, workers: int, given: str | None, threads: int
) -> None:
    now = {"threads": 8}
    monkeypatch.setattr(torch, "get_num_threads", lambda: now["threads"])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: now.update(threads=count))
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    for _ in range(3):  # once for each model that is loaded
        devices.share_processors(workers)
    assert now["threads"] == threads


# What of a device is in an address: everything of it that can change a number, and nothing else.


@pytest.fixture
def h100(monkeypatch: Patch) -> Iterator[None]:
    """Two H100s, and torch's settings as they were afterwards."""
    card("NVIDIA H100", "9.0")(monkeypatch)
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


@pytest.mark.usefixtures("h100")
@pytest.mark.parametrize("what", [*OTHER, *SAME])
def test_what_can_change_a_number_is_part_of_a_gpus_address_and_nothing_else(monkeypatch: Patch, what: str) -> None:
    before = device_ingredients("cuda")
    {**OTHER, **SAME}[what](monkeypatch)
    assert (device_ingredients("cuda") != before) == (what in OTHER)


def test_two_kinds_of_cards_in_one_machine_are_told_apart_by_their_index(monkeypatch: Patch) -> None:
    monkeypatch.setattr(devices, "cards", lambda: (Card("NVIDIA H100", "9.0"), Card("NVIDIA L4", "8.9")))
    first, second, both = (device_ingredients(each)["card"] for each in ("cuda:0", "cuda:1", "cuda"))
    assert (first, second, both) == ("NVIDIA H100, 9.0", "NVIDIA L4, 8.9", "NVIDIA H100, 9.0; NVIDIA L4, 8.9")


@pytest.mark.usefixtures("h100")
@pytest.mark.parametrize("device", ["cpu", "mps", "server"])
def test_a_processor_adds_nothing_but_settings_that_the_session_changed(device: str) -> None:
    assert device_ingredients(device) == {}
    torch.set_float32_matmul_precision("medium")
    assert device_ingredients(device) != {}
