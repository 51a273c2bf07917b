"""The error tree: safe between processes, and helpful about names."""

import copy
import inspect
import pickle

import pytest

from pytest_lmgate import errors

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("message", ["expected one, got none", "", "한 é \ud800"])
def test_an_error_survives_the_way_between_processes(kind: type[Exception], message: str) -> None:
    error = kind(message)
    for got in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert (type(got), str(got), got.args) == (kind, str(error), error.args)


def test_an_error_of_an_argument_keeps_it_on_the_way_between_processes() -> None:
    error = errors.ProtocolError.of("stride", "expected 8, got \x1b")
    for each in (error, pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert (type(each), str(each)) == (errors.ProtocolError, r"stride: expected 8, got \x1b")
        assert (each.argument, each.detail) == ("stride", r"expected 8, got \x1b")


def test_the_argument_that_was_looked_at_is_what_an_error_is_about_and_its_text_stays() -> None:
    with (
        pytest.raises(errors.ConfigError) as raised,
        errors.naming_argument("against"),
        errors.naming_argument("model"),
    ):
        raise errors.ConfigError("model 'x' is not known")
    assert (raised.value.argument, str(raised.value)) == ("against", "model 'x' is not known")


@pytest.mark.parametrize(
    ("name", "valid", "hint"),
    [
        ("modles", ["models", "datasets"], " (did you mean 'models'?)"),
        ("int8", ["int4", "int8-awq"], " (did you mean 'int4'?)"),
        ("zzz", ["models", "datasets"], ""),
        ("models", [], ""),
        ("", ["models"], ""),
        ("rougel", ["rouge1", "rougeW", "rougeL"], " (did you mean 'rougeL'?)"),
        ("MODLES", ["models", "datasets"], " (did you mean 'models'?)"),
    ],
)
def test_the_nearest_name_is_offered_if_one_is_near(name: str, valid: list[str], hint: str) -> None:
    assert errors.nearest(name, iter(valid)) == hint


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("red \x1b[31m and \x9b, bell \x07, back \r over", r"red \x1b[31m and \x9b, bell \x07, back \r over"),
        ("right to left \u202e, hidden \u200b, \u2066", r"right to left \u202e, hidden \u200b, \u2066"),
        ("::error::x", r"\::error::x"),
        ("a\n  ::set-output name=x::y\nb", "a\n  \\::set-output name=x::y\nb"),
        ("##vso[task.complete]", r"#\#vso[task.complete]"),
        ("see ##[error]x", r"see #\#[error]x"),
        ("https://user:token@hub.co/x and http://token@h/", "https://***@hub.co/x and http://***@h/"),
        ("/a/b/https:/user:token@hub.co/x", "/a/b/https:/***@hub.co/x"),
        *(
            (same, same)
            for same in ("", "two\nlines\tand a tab", "t.py::test_b[x]", "می\u200cخواهم", "한 é \xa0", "# one ## two")
        ),
        (
            "mail@example.org, org/name@v1.0, https://hub.co/o/n@v1.0",
            "mail@example.org, org/name@v1.0, https://hub.co/o/n@v1.0",
        ),
    ],
)
def test_what_a_terminal_or_a_log_would_obey_is_taken_out_of_a_message(text: str, shown: str) -> None:
    assert str(errors.ConfigError(text)) == errors.escape_controls(text) == shown
    assert errors.escape_controls(shown) == shown


def test_a_line_break_in_a_name_becomes_an_escape() -> None:
    assert errors.escape_controls("a\n::error::b", line=True) == r"a\n::error::b"
