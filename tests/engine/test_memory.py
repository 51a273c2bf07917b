"""Devices, budgets, and how many models stay in memory."""

from __future__ import annotations

import ctypes
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_lmgate.backends import memory
from pytest_lmgate.backends.base import Model, Runner
from pytest_lmgate.backends.hf.budget import token_budget
from pytest_lmgate.backends.hf.models import device
from pytest_lmgate.data.tokenization.tokens import TokenizerFacts
from pytest_lmgate.engine.pool import ModelPool

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
    assert memory.is_out_of_memory(error)


@pytest.mark.parametrize(
    "error", [RuntimeError("size mismatch"), ValueError("out of memory"), IndexError("index out of range"), OSError(12)]
)
def test_other_errors_are_not_taken_for_it(error: Exception) -> None:
    assert not memory.is_out_of_memory(error)


def test_an_allocation_that_the_processor_refuses_is_known() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**60, dtype=torch.uint8)

    assert memory.is_out_of_memory(refused.value)


# Budgets.


def test_the_budget_is_smaller_on_a_processor_and_where_logits_are_held_whole() -> None:
    assert token_budget(CPU) < token_budget(CUDA)
    assert token_budget(CPU, 100) == token_budget(CPU)
    whole = token_budget(CUDA, 250_000)
    assert whole * 250_000 * 4 <= 2**28 < (whole + 1) * 250_000 * 4
    assert token_budget(CPU, 2**40) == 1


@pytest.mark.parametrize(("kilobytes", "tokens"), [(130, 4096), (20, 16384), (0.1, 65536), (2**21, 1)])
def test_on_a_gpu_what_a_batch_of_tokens_takes_fits_in_512_mib(kilobytes: float, tokens: int) -> None:
    assert token_budget(CUDA, activation_bytes=kilobytes * 1000) == tokens
    assert tokens == 1 or tokens * kilobytes * 1000 <= 2**29


def test_the_free_memory_of_the_host_is_found() -> None:
    assert 2**20 < memory.available_bytes("cpu") < 2**50


def test_giving_memory_back_collects_what_is_unreachable() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.me = self

    watched = weakref.ref(Cycle())
    memory.release(CPU)

    assert watched() is None


# The pool.


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Bytes free, as the pool sees them."""
    known = {"bytes": 2**40}
    monkeypatch.setattr("pytest_lmgate.engine.pool.available_bytes", lambda _: known["bytes"])
    return known


class _Runner(Runner):
    """A model that tells when it is let go."""

    tokenizer = TokenizerFacts(lambda text, _: [])

    def __init__(self, on_close: Any = lambda: None) -> None:
        self.close = on_close


def get(pool: ModelPool, name: str, loads: list[str], on_close: Any = lambda: None) -> Runner:
    model = Model(name, lambda: loads.append(name) or _Runner(on_close), weight_bytes=100)  # type: ignore[func-returns-value]
    return pool.get(name, model)


def test_models_that_fit_stay_and_are_loaded_once(free: dict[str, int]) -> None:
    pool, loads = ModelPool(), list[str]()

    first = get(pool, "a", loads)
    get(pool, "b", loads)

    assert get(pool, "a", loads) is first
    assert (loads, len(pool)) == (["a", "b"], 2)


def test_where_memory_is_short_the_least_recently_used_goes_first(free: dict[str, int]) -> None:
    pool, loads = ModelPool(), list[str]()

    def give_back() -> None:
        free["bytes"] += 150

    for name in ("a", "b", "a"):
        get(pool, name, loads, give_back)
    free["bytes"] = 50  # room for twice the weights is wanted
    get(pool, "c", loads, give_back)

    assert len(pool) == 2
    get(pool, "a", loads)
    assert loads == ["a", "b", "c"]


def test_where_nothing_helps_the_model_is_loaded_alone(free: dict[str, int]) -> None:
    pool, loads = ModelPool(), list[str]()
    watched = weakref.ref(get(pool, "a", loads))
    free["bytes"] = 0

    get(pool, "b", loads)

    assert len(pool) == 1
    assert watched() is None, "the first one's memory is given back before the second is loaded"


# Devices.


@pytest.fixture
def clean_caches() -> Iterator[None]:
    for cached in (device._torch_has_cuda, device._cuda_devices):
        cached.cache_clear()
    yield
    for cached in (device._torch_has_cuda, device._cuda_devices):
        cached.cache_clear()


@pytest.mark.usefixtures("clean_caches")
def test_the_device_found_without_torch_is_the_one_torch_would_take() -> None:
    expected = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"

    assert device.resolve_device("auto") == expected
    assert device.resolve_device("cuda:3") == "cuda:3"


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
    monkeypatch.setattr(device, "_torch_has_cuda", lambda: True)
    monkeypatch.setattr(device, "_cuda_devices", lambda: 3)
    assert device.resolve_device(wanted, worker) == found
    monkeypatch.setattr(device, "_cuda_devices", lambda: 1)
    assert device.resolve_device(wanted, worker) == (wanted if ":" in wanted else found.partition(":")[0])


@pytest.mark.parametrize(("given", "found"), [("cpu", "cpu"), ("cuda", "cuda"), ("cuda:1", "cuda"), ("mps:0", "mps")])
def test_the_class_of_a_device_leaves_out_its_number(given: str, found: str) -> None:
    assert device.device_class(given) == found


@pytest.mark.usefixtures("clean_caches")
@pytest.mark.parametrize(
    ("version", "has_cuda"),
    [
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", True),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.3'\n", True),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", False),
        ("cuda = '11.8'\n", True),
    ],
)
def test_a_build_with_cuda_is_told_by_its_version_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, has_cuda: bool
) -> None:
    (tmp_path / "version.py").write_text(version)
    spec = types.SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda _: spec)

    assert device._torch_has_cuda() is has_cuda


class _Driver:
    """The part of libcuda that is asked."""

    def __init__(self, devices: int, code: int = 0) -> None:
        self._devices, self._code = devices, code

    def cuInit(self, _: int) -> int:
        return self._code

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self._devices
        return 0


@pytest.mark.usefixtures("clean_caches")
@pytest.mark.parametrize(
    ("driver", "visible", "found"),
    [
        (_Driver(2), None, 2),
        (_Driver(0), None, 0),
        (_Driver(2, code=100), None, 0),
        (None, None, 0),
        (_Driver(2), "0,1", 2),
        (_Driver(2), "", 0),
        (_Driver(2), "-1", 0),
    ],
)
def test_the_driver_is_asked_how_many_devices_there_are(
    monkeypatch: pytest.MonkeyPatch, driver: _Driver | None, visible: str | None, found: int
) -> None:
    def library(_: str) -> _Driver:
        if driver is None:
            raise OSError("libcuda.so.1: cannot open shared object file")
        return driver

    monkeypatch.setattr(ctypes, "CDLL", library)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert device._cuda_devices() == found


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

    device.share_processors.cache_clear()
    for _ in range(3):  # once for each model that is loaded
        device.share_processors(workers)

    assert now["threads"] == threads
    device.share_processors.cache_clear()
