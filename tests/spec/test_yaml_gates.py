"""The gates: list of lmgate.yaml: read with lines, and every mistake named by line, key and nearest name."""

from __future__ import annotations

import contextlib
import textwrap
from pathlib import Path

import pytest

from pytest_lmgate.errors import BaselineError, ConfigError, LmgateError, about
from pytest_lmgate.spec.yaml_gates import YamlGate, read_gates


def _read(folder: Path, text: str) -> tuple[list[YamlGate], list[str]]:
    (folder / "lmgate.yaml").write_text(textwrap.dedent(text).lstrip("\n"))
    return read_gates(folder / "lmgate.yaml")


def test_gates_are_read_in_order_with_their_labels_keys_and_lines(tmp_path: Path) -> None:
    gates, problems = _read(
        tmp_path,
        """
        models:
          int8: {path: models/int8}
        gates:
          # the first
          - ppl_max: {model: int8, dataset: wikitext2, limit: 16.5, stride: 512}
          - no_regression: {metric: ppl, model: int8, dataset: wikitext2, against: fp16, tolerance: 1%}
          - rouge_min:
              model: int8
              dataset: news

              limit: 0.3
              variant: rouge2
          - metric_min: {metric: politeness, model: int8, dataset: news, limit: 0}
        """,
    )
    assert problems == []
    assert [(gate.marker, gate.gate.label, gate.key, gate.line) for gate in gates] == [
        ("ppl_max", "ppl_max[int8-wikitext2-stride:512]", "gates[0].ppl_max", 5),
        ("no_regression", "no_regression:ppl[int8-wikitext2-vs-fp16]", "gates[1].no_regression", 6),
        ("rouge_min", "rouge_min:rouge2[int8-news]", "gates[2].rouge_min", 7),
        ("metric_min", "metric_min:politeness[int8-news]", "gates[3].metric_min", 13),
    ]
    assert gates[0].arguments == {"model": "int8", "dataset": "wikitext2", "limit": 16.5, "stride": 512}
    assert gates[2].lines == {"model": 8, "dataset": 9, "limit": 11, "variant": 12}


@pytest.mark.parametrize("text", ["models: {gates: {path: x}}", "datasets: # gates:\n"])
def test_a_file_without_gates_has_none(tmp_path: Path, text: str) -> None:
    assert _read(tmp_path, text) == ([], [])


def test_anchors_and_merges_share_arguments_and_lines_are_where_each_is_written(tmp_path: Path) -> None:
    gates, problems = _read(
        tmp_path,
        """
        gates:
          - ppl_max: &first
              model: int8
              dataset: wikitext2
              limit: 16.5
          - bpb_max:
              <<: *first
              limit: 1.5
        """,
    )
    assert problems == []
    assert gates[1].arguments == {"model": "int8", "dataset": "wikitext2", "limit": 1.5}
    assert gates[1].lines == {"model": 3, "dataset": 4, "limit": 8}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gates:", ":1: gates: expected a list of gates such as - ppl_max: {model: ..., "),
        ("models: {}\ngates: []", ":2: gates: expected a list of gates such as"),
        ("gates: {ppl_max: {}}", ", got a mapping; remove the key where there are none"),
        ("gates: ppl_max", ", got 'ppl_max'; remove the key where there are none"),
        ("gate:\n  - ppl_max: {}", ": gate: unknown key (did you mean 'gates'?); expected one of "),
        ("- gates: []", ": top level: expected keys with values, got a list"),
        ("gates: [a", ":1: not valid YAML: while parsing a flow sequence"),
        ("gates: []\ngates: []", ":2: not valid YAML: key 'gates' is written twice"),
        ("gates:\n  - ppl_max: {limit: 1,\n      limit: 2}", ":3: not valid YAML: key 'limit' is written twice"),
    ],
)
def test_a_list_that_is_none_is_an_error_that_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        _read(tmp_path, text)
    assert str(raised.value).startswith(f"{tmp_path / 'lmgate.yaml'}:")
    assert message in str(raised.value)


COMMON = "model: int8, dataset: wikitext2"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("ppl_max", "4: gates[1]: expected a marker with its arguments, as in - ppl_max: {model: ..., "),
        ("", "4: gates[1]: expected a marker with its arguments, as in - ppl_max: {model: ..., dataset: ..., "),
        ("{}", "4: gates[1]: expected exactly one marker, as in - ppl_max: {model: ..., dataset: ..., limit: ...}; "),
        ("{ppl_max: {limit: 1}, bpb_max: {limit: 1}}", "; got ppl_max, bpb_max"),
        (
            "ppl_max:\n    model: int8\n    limit: 2",
            "; got ppl_max, model, limit; indent the arguments below their marker",
        ),
        ("pl_max: {}", "4: gates[1].pl_max: unknown marker (did you mean 'ppl_max'?); expected one of accuracy_min, "),
        ("skip: {}", "4: gates[1].skip: unknown marker; expected one of accuracy_min, bleu_min, "),
        ("1: {}", "4: gates[1].1: unknown marker; expected one of accuracy_min, "),
        ("ppl_max: [int8, wikitext2, 3]", "4: gates[1].ppl_max: expected arguments by name, as in "),
        ("ppl_max:", "; got nothing"),
        ("ppl_max: {1: x}", "4: gates[1].ppl_max: expected names of arguments, got 1"),
        ("ppl_max: {}", "4: gates[1].ppl_max: missing a required argument: 'model'; expected ppl_max(model, "),
        (f"ppl_max: {{{COMMON}}}", "4: gates[1].ppl_max: missing a required argument: 'limit'"),
        (
            f"ppl_max:\n      {{{COMMON},\n      strid: 8, limit: 3}}",
            "6: gates[1].ppl_max.strid: unknown argument (did you mean 'stride'?); expected ppl_max(model, ",
        ),
        (
            f"ppl_max:\n      {{{COMMON},\n      limit: many}}",
            "6: gates[1].ppl_max.limit: expected a number, got 'many'",
        ),
        (f"ppl_max: {{{COMMON}, limit: .nan}}", "4: gates[1].ppl_max.limit: expected a positive finite number, got "),
        (
            f"bpb_max: {{{COMMON}, limit: 1e-3}}",
            "limit: expected a number, got '1e-3'; YAML takes an exponent only with a dot and a sign, as in 1.0e-3",
        ),
        (
            f"ppl_max: {{{COMMON}, limit: 10,5}}",
            ": expected names of arguments, got 5; a decimal has a dot: limit: 10.5",
        ),
        (f"no_regression: {{metric: ppl, {COMMON}, tolerance: '0,5%'}}", "; a decimal has a dot: 0.5%"),
        (f"ppl_max: {{{COMMON}, max: 9}}", "gates[1].ppl_max.max: unknown argument (did you mean 'limit'?)"),
        (f"ppl_max: {{{COMMON}, threshold: 9}}", "unknown argument (did you mean 'limit'?)"),
        (f"kl_max: {{{COMMON}, against: fp16, limit: 1}}", ".against: unknown argument (did you mean 'reference'?)"),
        (
            f"no_regression: {{metric: ppl, {COMMON}, reference: fp16, tolerance: 1%}}",
            ".reference: unknown argument (did you mean 'against'?)",
        ),
        (
            f"no_regression: {{metric: perplexity, {COMMON}, tolerance: 1%, stride: 8}}",
            "so it is taken for a registered metric (did you mean 'ppl'?)",
        ),
        (f"ppl_max: {{{COMMON}, limit: 9, stride: 0}}", "4: gates[1].ppl_max.stride: expected a whole number of "),
        (f"ppl_max: {{{COMMON}, limit: 9, protocol: slidng}}", " got 'slidng' (did you mean 'sliding'?)"),
        (
            f"no_regression: {{metric: ppl, {COMMON}, tolerance: -1}}",
            "4: gates[1].no_regression.tolerance: expected a finite size that is not negative, got -1",
        ),
        ("ppl_max: {model: no, dataset: d, limit: 9}", "gates[1].ppl_max.model: expected a name, got False (put it in"),
        ("ppl_max: {model: 8, dataset: d, limit: 9}", "4: gates[1].ppl_max.model: expected a name, got 8 (put it in"),
        ("ppl_max: {model: m, dataset: , limit: 9}", "4: gates[1].ppl_max.dataset: expected a name, got nothing"),
        ("ppl_max: {model: m, dataset: [a], limit: 9}", "4: gates[1].ppl_max.dataset: expected a name, got a list"),
        ("ppl_max: {model: 2024-01-01, dataset: d, limit: 9}", "model: expected a name, got datetime.date(2024, 1, 1)"),
    ],
)
def test_a_wrong_entry_is_named_by_line_and_key_with_what_was_expected(
    tmp_path: Path, entry: str, message: str
) -> None:
    good = "ppl_max: {model: int8, dataset: wikitext2, limit: 9}"
    gates, problems = _read(tmp_path, f"models: {{}}\ngates:\n  - {good}\n  - {entry}\n  - {good}\n")
    assert [gate.key for gate in gates] == ["gates[0].ppl_max", "gates[2].ppl_max"]  # the others are read all the same
    [problem] = problems
    assert problem.startswith(f"{tmp_path / 'lmgate.yaml'}:")
    assert message in problem


def _about(argument: str, message: str) -> ConfigError:
    error = ConfigError(message)
    with contextlib.suppress(ConfigError), about(argument):
        raise error
    return error


@pytest.mark.parametrize(
    ("error", "where"),
    [
        (ConfigError.of("model", "not known"), "3: gates[0].no_regression.model: not known"),
        (
            _about("against", "model 'fp61' is not known"),
            "5: gates[0].no_regression.against: model 'fp61' is not known",
        ),
        (_about("reference", "model: too long"), "7: gates[0].no_regression.reference: model: too long"),
        (ConfigError.of("confidence", "too sure"), "2: gates[0].no_regression: confidence: too sure"),
        (ConfigError("model: a fool"), "2: gates[0].no_regression: model: a fool"),
        (BaselineError("metric: it differs"), "2: gates[0].no_regression: metric: it differs"),
        (ConfigError.of("metric", "of no use"), "6: gates[0].no_regression.metric: of no use"),
    ],
)
def test_an_error_is_placed_by_the_argument_that_it_carries_not_by_its_words(
    tmp_path: Path, error: LmgateError, where: str
) -> None:
    gates, _ = _read(
        tmp_path,
        """
        gates:
          - no_regression:
              model: int8
              dataset: wikitext2
              against: fp61
              metric: kl
              reference: int
              tolerance: 1%
        """,
    )
    assert gates[0].problem(error) == f"{tmp_path / 'lmgate.yaml'}:{where}"
