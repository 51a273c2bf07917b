"""Devices, memory that runs out, and budgets."""

import ctypes
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_lmgate.engines import devices
from pytest_lmgate.engines.transformers.runner import token_budget

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


# Running out.


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
        RuntimeError("MPS backend out of memory (MPS allocated: 18.00 GB)"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("onnxruntime: Failed to allocate memory for requested buffer of size 68719476736"),
        RuntimeError("bad allocation"),
    ],
)
def test_every_way_to_run_out_of_memory_is_known(error: Exception) -> None:
    assert devices.is_out_of_memory(error)


@pytest.mark.parametrize(
    "error", [RuntimeError("size mismatch"), ValueError("out of memory"), IndexError("index out of range"), OSError(12)]
)
def test_other_errors_are_not_taken_for_it(error: Exception) -> None:
    assert not devices.is_out_of_memory(error)


def test_an_allocation_that_the_processor_refuses_is_known() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**60, dtype=torch.uint8)

    assert devices.is_out_of_memory(refused.value)


# Budgets.


def test_the_budget_is_smaller_on_a_processor_and_where_logits_are_held_whole() -> None:
    assert token_budget(CPU) < token_budget(CUDA)
    assert token_budget(CPU, 100) == token_budget(CPU)
    whole = token_budget(CUDA, 250_000)
    assert whole * 250_000 * 4 <= 2**28 < (whole + 1) * 250_000 * 4
    assert token_budget(CPU, 2**40) == 1


@pytest.mark.parametrize(("kilobytes", "tokens"), [(130, 4096), (20, 32768), (0.1, 65536), (2**21, 1)])
def test_on_a_gpu_what_a_batch_of_tokens_takes_fits_in_768_mib(kilobytes: float, tokens: int) -> None:
    assert token_budget(CUDA, activation_bytes=kilobytes * 1000) == tokens
    assert tokens == 1 or tokens * kilobytes * 1000 <= 3 * 2**28


# Devices.

ROCM = "cuda: Optional[str] = None\nhip: Optional[str] = '6.3'\n"


@pytest.fixture
def clean_caches() -> Iterator[None]:
    for cached in (devices._torch_build, devices.cards):
        cached.cache_clear()
    yield
    for cached in (devices._torch_build, devices.cards):
        cached.cache_clear()


@pytest.mark.usefixtures("clean_caches")
def test_the_device_found_without_torch_is_the_one_torch_would_take() -> None:
    expected = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"

    assert devices.resolve_device("auto") == expected
    assert devices.resolve_device("cuda:3") == "cuda:3"


@pytest.mark.parametrize(
    ("wanted", "worker", "found"),
    [
        ("auto", 0, "cuda:0"),
        ("auto", 1, "cuda:1"),
        ("cuda", 4, "cuda:1"),
        ("cuda:2", 4, "cuda:2"),
        ("cpu", 1, "cpu"),
        ("auto", None, "cuda"),
        ("cuda", None, "cuda"),
    ],
)
def test_a_worker_takes_a_gpu_of_its_own_by_turns(
    monkeypatch: pytest.MonkeyPatch, wanted: str, worker: int | None, found: str
) -> None:
    monkeypatch.setattr(devices, "_torch_build", lambda: ("cuda", "13.0"))
    monkeypatch.setattr(devices, "cuda_devices", lambda: 3)
    assert devices.resolve_device(wanted, worker) == found
    monkeypatch.setattr(devices, "cuda_devices", lambda: 1)
    assert devices.resolve_device(wanted, worker) == (wanted if ":" in wanted else found.partition(":")[0])


@pytest.mark.usefixtures("clean_caches")
@pytest.mark.parametrize(
    ("version", "build"),
    [
        (None, ("cuda",)),  # an unusual build, of which the driver knows
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", ("cuda", "12.8")),
        (ROCM, ("hip", "6.3")),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", ()),
        ("cuda = '11.8'\n", ("cuda", "11.8")),
    ],
)
def test_what_torch_was_built_for_is_told_by_its_version_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, build: tuple[str, ...]
) -> None:
    if version is not None:
        (tmp_path / "version.py").write_text(version)
    spec = types.SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda _: spec)

    assert devices._torch_build() == build


@pytest.mark.usefixtures("clean_caches")
def test_devices_of_a_build_for_rocm_are_counted_by_torch_and_not_by_the_driver_of_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.py").write_text(ROCM)
    spec = types.SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda _: spec)
    card = types.SimpleNamespace(name="AMD Instinct MI300X", gcnArchName="gfx942")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)

    assert devices.cuda_devices() == 8
    assert devices.resolve_device("auto") == "cuda"
    assert devices.resolve_device("auto", worker=9) == "cuda:1"
    assert devices.device_ingredients("cuda:7") == {"card": "AMD Instinct MI300X, gfx942", "built for": "hip 6.3"}


@pytest.mark.usefixtures("clean_caches")
@pytest.mark.parametrize(("machine", "device"), [("arm64", "mps"), ("x86_64", "cpu")])
def test_without_torch_a_mac_of_apples_has_its_own_gpu(
    monkeypatch: pytest.MonkeyPatch, machine: str, device: str
) -> None:
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(devices, "sys", types.SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(devices.platform, "machine", lambda: machine)
    assert devices.resolve_device("auto") == device


def test_where_the_system_tells_no_free_memory_half_of_the_memory_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    total = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line)

    def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(devices, "open", refuse, raising=False)
    assert devices.available_bytes("cpu") == pytest.approx(total * 512, rel=0.01)
    monkeypatch.delattr(devices.os, "sysconf")
    assert devices.available_bytes("cpu") == 2**32


def _driver(devices: int, code: int = 0) -> Any:
    """Return the part of libcuda that is asked."""

    def tell(pointer: Any, value: int) -> int:
        pointer._obj.value = value
        return 0

    return types.SimpleNamespace(
        cuInit=lambda _: code,
        cuDeviceGetCount=lambda count: tell(count, devices),
        cuDeviceGet=lambda handle, number: tell(handle, number),
        cuDeviceGetName=lambda name, size, handle: setattr(
            name, "value", f"NVIDIA H{100 * (handle.value + 1)}".encode()
        ),
        cuDeviceGetAttribute=lambda value, attribute, handle: tell(value, attribute - 66),
    )


@pytest.mark.usefixtures("clean_caches")
def test_the_driver_tells_the_name_and_the_compute_capability_of_each_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: _driver(2))
    monkeypatch.setattr(devices, "_torch_build", lambda: ("cuda", "13.0"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    assert devices.cards() == (("NVIDIA H100", "9.10"), ("NVIDIA H200", "9.10"))
    assert devices.hardware_of("cuda:1") == "NVIDIA H200"
    assert devices.hardware_of("cuda") == "NVIDIA H100, NVIDIA H200"


@pytest.mark.usefixtures("clean_caches")
@pytest.mark.parametrize(
    ("driver", "visible", "found"),
    [
        (_driver(2), None, 2),
        (_driver(0), None, 0),
        (_driver(2, code=100), None, 0),
        (None, None, 0),
        (_driver(2), "0,1", 2),
        (_driver(2), "", 0),
        (_driver(2), "-1", 0),
    ],
)
def test_the_driver_is_asked_how_many_devices_there_are(
    monkeypatch: pytest.MonkeyPatch, driver: Any, visible: str | None, found: int
) -> None:
    def library(_: str) -> Any:
        if driver is None:
            raise OSError("libcuda.so.1: cannot open shared object file")
        return driver

    monkeypatch.setattr(ctypes, "CDLL", library)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert devices.cuda_devices() == found


@pytest.mark.parametrize(("workers", "given", "threads"), [(1, None, 8), (2, None, 4), (16, None, 1), (2, "8", 8)])
def test_processes_share_the_processors_unless_the_user_decides(
    monkeypatch: pytest.MonkeyPatch, workers: int, given: str | None, threads: int
) -> None:
    now = {"threads": 8}
    monkeypatch.setattr(torch, "get_num_threads", lambda: now["threads"])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: now.update(threads=count))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)

    devices.share_processors.cache_clear()
    for _ in range(3):  # once for each model that is loaded
        devices.share_processors(workers)

    assert now["threads"] == threads
    devices.share_processors.cache_clear()
