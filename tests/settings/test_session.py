"""What `--lmgate-executor` takes, and what it says of anything else."""

import importlib.util
from pathlib import Path

import pytest

from pytest_lmgate.errors import ConfigError
from pytest_lmgate.settings.session import CacheKey, Executor, Options

HAS_RAY = importlib.util.find_spec("ray") is not None


@pytest.mark.parametrize(
    ("written", "fact"),
    [
        ("spark", "got 'spark'"),
        ("http://head:10001", "ray://host:10001"),
        ("ray://[::1", "ray://host:10001"),
        ("ray?num_cpus=0", "num_cpus=0: .*workers="),
        ("ray?worker=4", "got 'worker'.*workers"),
        ("ray?workers=0", "workers: .*got '0'"),
        ("ray?num_gpus=nan", "num_gpus: .*got 'nan'"),
        ("ray?num_gpus=1.5", "num_gpus: .*got 1.5"),
    ],
)
def test_what_is_no_executor_is_refused_with_what_was_expected(written: str, fact: str) -> None:
    with pytest.raises(ConfigError, match=f"^--lmgate-executor: .*{fact}"):
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


SECRET = "sixteen bytes at least"


def test_the_key_is_the_variable_without_the_white_space_that_a_file_or_a_secret_store_adds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LMGATE_CACHE_KEY", raising=False)
    assert CacheKey.from_environment() is None
    monkeypatch.setenv("LMGATE_CACHE_KEY", f" {SECRET}\n")
    key = CacheKey.from_environment()
    assert key is not None
    assert key.signature("a", b"b") == CacheKey(SECRET.encode()).signature("a", b"b")


@pytest.mark.parametrize("key", ["", " \n", "fifteen bytes!!"])
def test_a_short_key_is_refused_with_the_way_to_make_one(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("LMGATE_CACHE_KEY", key)
    with pytest.raises(ConfigError, match=r"^LMGATE_CACHE_KEY: expected a secret of at least 16 bytes, got \d+; make"):
        CacheKey.from_environment()


def test_a_signature_is_of_the_name_and_of_the_content_and_no_part_of_one_may_move_to_the_other() -> None:
    key = CacheKey(SECRET.encode())
    signed = {key.signature(name, body) for name, body in [("a", b"bc"), ("ab", b"c"), ("a", b"c"), ("abc", b"")]}
    assert len(signed) == 4
    assert key.fits(key.signature("a", b"b"), "a", b"b")
    assert not key.fits(key.signature("a", b"b"), "a", b"c")


def test_no_attribute_and_no_representation_holds_the_key(tmp_path: Path) -> None:
    key = CacheKey(SECRET.encode())
    assert SECRET not in f"{key} {key!r} {vars(key)} {Options(cache=tmp_path, cache_key=key)}"
