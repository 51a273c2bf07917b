"""An entry of ``gates:`` that stands for many gates is read as if each of them had been written out."""

from pathlib import Path

import pytest

from pytest_lmgate.errors import ConfigError
from pytest_lmgate.settings.file import YamlGate, load_project, read_gates
from pytest_lmgate.settings.options import FILE_NAME

SHORT = """
defaults: {device: cpu, model: [int8, int4], reference: fp16, tolerance: 1%}
gates:
  - no_regression: {metric: [ppl, kl], dataset: [wiki, code]}
  - ppl_max: {dataset: wiki, limit: {int8: 16.5, int4: 17.2}, stride: [128, 256]}
  - accuracy_min: {model: int4, dataset: mmlu, limit: 0.55, variant: [acc, acc_norm]}
  - kl_max: {dataset: [wiki, code], limit: {int8: {wiki: 0.1, code: 0.2}, int4: 0.3}, statistic: [mean, p99]}
  - no_regression: {metric: ppl, model: int8, dataset: code, within: 2%}
  - no_regression: {metric: [ppl, accuracy], model: int8, dataset: mmlu, variant: {ppl: null, accuracy: acc_norm}}
"""
WRITTEN_OUT = """
gates:
  - no_regression: {metric: ppl, model: int8, dataset: wiki, tolerance: 1%}
  - no_regression: {metric: ppl, model: int8, dataset: code, tolerance: 1%}
  - no_regression: {metric: ppl, model: int4, dataset: wiki, tolerance: 1%}
  - no_regression: {metric: ppl, model: int4, dataset: code, tolerance: 1%}
  - no_regression: {metric: kl, model: int8, reference: fp16, dataset: wiki, tolerance: 1%}
  - no_regression: {metric: kl, model: int8, reference: fp16, dataset: code, tolerance: 1%}
  - no_regression: {metric: kl, model: int4, reference: fp16, dataset: wiki, tolerance: 1%}
  - no_regression: {metric: kl, model: int4, reference: fp16, dataset: code, tolerance: 1%}
  - ppl_max: {model: int8, dataset: wiki, limit: 16.5, stride: 128}
  - ppl_max: {model: int8, dataset: wiki, limit: 16.5, stride: 256}
  - ppl_max: {model: int4, dataset: wiki, limit: 17.2, stride: 128}
  - ppl_max: {model: int4, dataset: wiki, limit: 17.2, stride: 256}
  - accuracy_min: {model: int4, dataset: mmlu, limit: 0.55, variant: acc}
  - accuracy_min: {model: int4, dataset: mmlu, limit: 0.55, variant: acc_norm}
  - kl_max: {model: int8, reference: fp16, dataset: wiki, limit: 0.1}
  - kl_max: {model: int8, reference: fp16, dataset: wiki, limit: 0.1, statistic: p99}
  - kl_max: {model: int8, reference: fp16, dataset: code, limit: 0.2}
  - kl_max: {model: int8, reference: fp16, dataset: code, limit: 0.2, statistic: p99}
  - kl_max: {model: int4, reference: fp16, dataset: wiki, limit: 0.3}
  - kl_max: {model: int4, reference: fp16, dataset: wiki, limit: 0.3, statistic: p99}
  - kl_max: {model: int4, reference: fp16, dataset: code, limit: 0.3}
  - kl_max: {model: int4, reference: fp16, dataset: code, limit: 0.3, statistic: p99}
  - no_regression: {metric: ppl, model: int8, dataset: code, within: 2%}
  - no_regression: {metric: ppl, model: int8, dataset: mmlu, tolerance: 1%}
  - no_regression: {metric: accuracy, model: int8, dataset: mmlu, variant: acc_norm, tolerance: 1%}
"""


def gates_of(folder: Path, text: str) -> list[YamlGate]:
    gates, problems = read(folder, text)
    assert problems == []
    return gates


def read(folder: Path, text: str) -> tuple[list[YamlGate], list[str]]:
    (folder / FILE_NAME).write_text(text)
    load_project(folder)
    return read_gates(folder / FILE_NAME)


def test_a_short_file_has_the_gates_of_the_file_that_writes_them_out(tmp_path: Path) -> None:
    short, written = gates_of(tmp_path, SHORT), gates_of(tmp_path, WRITTEN_OUT)
    assert [each.gate for each in short] == [each.gate for each in written]
    assert [each.gate.label for each in short] == [each.gate.label for each in written]
    assert {each.line for each in short} == {4, 5, 6, 7, 8, 9}
    assert [each.is_one_of_many for each in short] == [True] * 22 + [False, True, True]


ENTRY = "- ppl_max: {model: [int8, int4], dataset: wiki, limit: 16.5}"


@pytest.mark.parametrize(
    ("defaults", "entry", "facts"),
    [
        ("", ENTRY.replace("[int8, int4]", "[]"), "3: gates[0].ppl_max.model: expected a name or a list of names"),
        ("", ENTRY.replace("int4", "int8"), "3: gates[0].ppl_max.model: expected different values, got 'int8' twice"),
        ("", ENTRY.replace("int4", "[a]"), "3: gates[0].ppl_max.model: expected a list of single values"),
        ("", ENTRY.replace("int4", "yes"), "3: gates[0].ppl_max.model: expected a name, got True"),
        ("", ENTRY.replace("16.5", "[16, 17]"), "got [16, 17]; only metric, model, dataset, stride,"),
        ("", ENTRY.replace("16.5", "{int8: 16, int5: 17}"), "for each model, int8, int4: got 'int5' (did you"),
        ("", ENTRY.replace("16.5", "{int8: 16}"), "3: gates[0].ppl_max.limit: expected a value for each model"),
        ("", ENTRY.replace("16.5", "{int8: 16}"), ": int4 is missing"),
        ("", ENTRY.replace("[int8, int4]", "int8, stride: [8, 16]").replace("16.5", "{'8': 3, 16: 4}"),
         "for each stride, 8, 16: got '8' in quotes (write it as in the list), 8 is missing"),
        ("", ENTRY.replace("ppl_max", "cut_max").replace("16.5", "{int8: 0.1, int4: 1}"),
         "3: gates[0].cut_max.limit: expected less than 1, got 1: cut_max could never fail"),
        ("", ENTRY.replace("wiki", "[a, b]").replace("16.5", "{int8: {int8: 3, int4: 3}, int4: 3}"),
         "expected a value for each dataset, a, b: got 'int8'"),
        ("", ENTRY.replace("16.5", "{int8: {int8: 3, int4: 3}, int4: 3}"), "but this gate has no list for it"),
        ("", ENTRY.replace("[int8, int4]", "int8").replace("16.5", "{int8: 16}"), "but this gate has no list"),
        ("", ENTRY.replace("16.5", "{a: 1, b: 2}").replace("[int8, int4], dataset: wiki", "[a, b], dataset: [a, b]"),
         "its keys may be names of model or of dataset: write these gates one by one"),
        ("", ENTRY.replace("limit", "limits").replace("16.5", "{int8: 16}"), "limits: unknown argument"),
        ("", ENTRY.replace("ppl_max", "kl_max").replace("limit", "reference: [a, b], limit"),
         "reference: expected a name, got a list; only metric, model"),
        ("strid: 8", ENTRY, "1: defaults.strid: unknown key (did you mean 'stride'?); expected one of device, dtype,"),
        ("tolerance: 1%", ENTRY, "1: defaults.tolerance: no gate uses it"),
        ("limit: 3", ENTRY, "1: defaults.limit: no gate uses it"),
        ("stride: 8", ENTRY.replace("limit", "protocol: gptq, limit"), "1: gates[0].ppl_max: defaults.stride: "),
        ("model: []", ENTRY.replace("model: [int8, int4], ", ""), "1: gates[0].ppl_max: defaults.model: "),
        ("", ENTRY.replace("limit", "marks: [ppl_max], limit"), "got 'ppl_max', a gate"),
        ("", ENTRY.replace("limit", "marks: parametrize, limit"), "got 'parametrize', a mark that needs arguments"),
        ("", ENTRY.replace("limit", "marks: [], limit"), "3: gates[0].ppl_max.marks: expected names of marks"),
        ("", ENTRY.replace("limit", "marks: [a b], limit"), "expected the name of a mark, got 'a b'"),
        ("", ENTRY.replace("limit", "advisory: 1, limit"), "advisory: expected true or false, got 1"),
        ("", "- no_regression: {metric: ppl, model: a, dataset: b}", "expected exactly one of them, got neither"),
        ("", "- no_regression: {metric: ppl, model: a, dataset: b, within: 1%, tolerance: 1%}", "got both"),
        ("", "- no_regression: {metric: ppl, model: a, dataset: b, within: 100%}", "less than 100% for ppl"),
        ("", "- no_regression: {metric: ppl, model: a, dataset: b, within: 2}", "within: expected a percentage"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_by_its_line_and_key(tmp_path: Path, defaults: str, entry: str, facts: str) -> None:
    text = f"defaults: {{{defaults}}}\ngates:\n  {entry}\n"
    try:
        _, problems = read(tmp_path, text)
    except ConfigError as error:
        problems = [str(error)]
    [problem] = problems
    assert facts in problem
    assert problem.startswith(f"{tmp_path / FILE_NAME}:")


def test_lists_that_multiply_to_more_gates_than_anyone_runs_are_refused_at_once(tmp_path: Path) -> None:
    names, strides = ", ".join(f"m{number}" for number in range(300)), ", ".join(map(str, range(1, 300)))
    entry = f"ppl_max: {{model: [{names}], dataset: [{names}], stride: [{strides}], limit: 2}}"
    gates, (problem,) = read(tmp_path, f"gates:\n  - {entry}\n")
    assert gates == []
    assert (
        "yaml:2: gates[0].ppl_max: expected at most 10,000 gates of an entry, got 26,910,000: 300 of model, " in problem
    )


def test_a_null_takes_a_default_away_or_leaves_an_argument_out_for_one_name(tmp_path: Path) -> None:
    short = """
    defaults: {model: m, reference: r, protocol: llama.cpp, max_length: 64, add_bos_token: true}
    gates:
      - kl_max: {dataset: wiki, limit: 1, add_bos_token: false}
      - kl_max: {dataset: wiki, limit: 1, estimator: sampled, protocol: null, max_length: null, add_bos_token: false}
      - ppl_max: {dataset: wiki, limit: 1, protocol: lm-eval, add_bos_token: null}
      - no_regression: {metric: [accuracy, exact], dataset: {accuracy: quiz, exact: math}, tolerance: 0.1,
          max_length: null, variant: {accuracy: acc_norm, exact: null}}
      - ppl_max: {dataset: wiki, limit: 1, protocol: lm-eval}
    """
    written = """
    gates:
      - kl_max: {model: m, reference: r, dataset: wiki, limit: 1, protocol: llama.cpp, max_length: 64}
      - kl_max: {model: m, reference: r, dataset: wiki, limit: 1, estimator: sampled}
      - ppl_max: {model: m, dataset: wiki, limit: 1, protocol: lm-eval, max_length: 64, add_bos_token: null}
      - no_regression: {metric: accuracy, model: m, dataset: quiz, tolerance: 0.1, variant: acc_norm}
      - no_regression: {metric: exact, model: m, dataset: math, tolerance: 0.1}
      - ppl_max: {model: m, dataset: wiki, limit: 1, protocol: lm-eval, max_length: 64, add_bos_token: true}
    """
    assert [each.gate for each in gates_of(tmp_path, short)] == [each.gate for each in gates_of(tmp_path, written)]


def test_defaults_of_gates_in_a_file_without_gates_are_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("defaults: {device: cpu, stride: 8}\nmodels: {a: {path: x}}\n")
    with pytest.raises(ConfigError, match=r"yaml:1: defaults\.stride: it is for gates, and the file has no gates:"):
        load_project(tmp_path)
