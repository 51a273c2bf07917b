"""What `--lmgate-executor` takes, and what it says of anything else."""

from __future__ import annotations

import importlib.util

import pytest

from pytest_lmgate.config.executor import Executor
from pytest_lmgate.errors import ConfigError

HAS_RAY = importlib.util.find_spec("ray") is not None


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("spark", "expected ray, or an address as in ray://host:10001; got 'spark'"),
        ("ray://", "expected ray, or an address as in ray://host:10001; got 'ray://'"),
        ("http://head:10001", "expected ray, or an address"),
        ("ray://[::1", "expected ray, or an address"),
        ("ray?num_cpus=0", "num_cpus=0: say workers= or num_gpus= too, to limit the workers"),
        ("ray?worker=4", r"expected one of workers, num_gpus, num_cpus after \?; got 'worker'.*workers"),
        ("ray?workers=0", "workers: expected a whole number from 1; got '0'"),
        ("ray?workers=1.5", "workers: expected a whole number from 1; got '1.5'"),
        ("ray?workers=", "workers: expected a whole number from 1; got ''"),
        ("ray?num_gpus=nan", "num_gpus: expected a number from 0; got 'nan'"),
        ("ray?num_gpus=-1", "num_gpus: expected a number from 0; got '-1'"),
        ("ray?num_gpus=1.5", "num_gpus: expected a part of a GPU, or a whole number of them; got '1.5'"),
    ],
)
def test_what_is_no_executor_is_refused_with_what_was_expected(written: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^--lmgate-executor: {message}"):
        Executor.parse(written)


@pytest.mark.skipif(HAS_RAY, reason="Ray is installed")
def test_where_ray_is_not_installed_it_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"Ray is not installed: pip install 'pytest-lmgate\[ray\]'"):
        Executor.parse("ray")


@pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed")
@pytest.mark.parametrize(
    ("written", "executor", "device"),
    [
        ("ray", Executor(), "cpu"),
        ("ray?workers=4&num_cpus=0.5", Executor(workers=4, num_cpus=0.5), "cpu"),
        ("ray://head:10001?num_gpus=0.25", Executor("ray://head:10001", num_gpus=0.25), "cuda"),
    ],
)
def test_an_address_says_where_and_how_many(written: str, executor: Executor, device: str) -> None:
    assert Executor.parse(written) == executor
    assert executor.device == device
