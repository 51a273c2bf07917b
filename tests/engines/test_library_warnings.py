"""What libraries warn of while a model is loaded: heard, whoever says it, and not printed."""

import functools
import logging
import warnings
from collections.abc import Iterator

import pytest

from pytest_lmgate.engines.registry import library_warnings


@pytest.fixture
def apart() -> Iterator[logging.Logger]:
    """A logger as that of transformers: it prints by a handler of its own, and tells nobody else."""
    logger = logging.getLogger("apart")
    logger.propagate, logger.handlers = False, [logging.StreamHandler()]
    logger.setLevel(logging.ERROR)
    yield logger
    logger.propagate, logger.handlers = True, []
    logger.setLevel(logging.NOTSET)


def test_what_is_logged_at_warning_or_above_is_heard_once_and_not_printed(
    apart: logging.Logger, capfd: pytest.CaptureFixture[str]
) -> None:
    handlers = apart.handlers
    with library_warnings() as heard:
        for _ in range(2):
            apart.getChild("inner").warning("too\n%s", "short")
        logging.getLogger("plain").error("lost")
        apart.info("nothing")
        logging.getLogger("plain").info("nothing")
    assert list(heard) == ["apart: too short", "plain: lost"]
    assert (apart.handlers, apart.level) == (handlers, logging.ERROR)
    assert capfd.readouterr() == ("", "")


def test_python_warnings_of_the_model_are_heard_and_those_of_code_are_not() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with library_warnings() as heard:
            warnings.warn("odd", UserWarning, stacklevel=1)
            for category in (DeprecationWarning, FutureWarning, PendingDeprecationWarning, ResourceWarning):
                warnings.warn("old", category, stacklevel=1)
        with pytest.raises(UserWarning):
            warnings.warn("odd", UserWarning, stacklevel=1)
    assert [text.rpartition(": ")[2] for text in heard] == ["odd"]


def test_within_another_the_outer_one_hears_also_a_library_that_came_meanwhile(apart: logging.Logger) -> None:
    with library_warnings() as heard:
        apart.handlers = [logging.StreamHandler()]  # as when a library is imported
        with library_warnings():
            apart.warning("inner")
        warnings.warn("after", UserWarning, stacklevel=1)
    assert [text.rpartition(": ")[2] for text in heard] == ["inner", "after"]


def test_what_a_library_says_once_is_heard_for_each_model(monkeypatch: pytest.MonkeyPatch) -> None:
    @functools.lru_cache(None)
    def warning_once(self: logging.Logger, text: str) -> None:
        self.warning(text)

    monkeypatch.setattr(logging.Logger, "warning_once", warning_once, raising=False)
    for _ in range(2):
        with library_warnings() as heard:
            logging.getLogger("once").warning_once("again")  # type: ignore[attr-defined]
        assert list(heard) == ["once: again"]


def test_the_list_of_weights_that_were_not_used_is_left_out_since_they_are_checked_one_by_one() -> None:
    with library_warnings() as heard:
        logging.getLogger("transformers").warning("\x1b[1mLlamaForCausalLM LOAD REPORT\x1b[0m from: m")
        logging.getLogger("transformers").warning("Some weights of the model checkpoint at m were not used")
    assert not heard
