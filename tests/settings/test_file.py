"""lmgate.yaml: found upward, decoded whole, and every mistake named by file, key, expectation and nearest name."""

import os
import textwrap
from pathlib import Path

import pytest

from pytest_lmgate.errors import ConfigError
from pytest_lmgate.settings.entries import ModelSpec, Project
from pytest_lmgate.settings.file import YamlGate, load_project, read_gates
from pytest_lmgate.settings.options import FILE_NAME, find_project_file, misspelt


def _load(folder: Path, text: str | bytes) -> Project:
    (folder / FILE_NAME).write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_project(folder)


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "\ufeff", " # one\n--- # two\n\n...\n# three"])
def test_a_file_with_nothing_in_it_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="got an empty file"):
        _load(tmp_path, text)


def test_text_that_is_not_utf_8_and_a_merge_conflict_are_named_with_their_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^{tmp_path / FILE_NAME}: .*0xe9 at 9"):
        _load(tmp_path, "models: {é: {path: x}}".encode("latin-1"))
    text = "models:\n  a: {path: x}\n<<<<<<< HEAD\n  b: {path: y}\n=======\n  b: {path: z}\n>>>>>>> theirs\n"
    with pytest.raises(ConfigError, match=r"lmgate\.yaml:3: an unresolved merge conflict"):
        _load(tmp_path, text)


def test_the_nearest_file_upward_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b" / "c"
    inner.mkdir(parents=True)
    found = find_project_file(inner)
    assert found is None or not found.is_relative_to(tmp_path)
    (tmp_path / FILE_NAME).write_text("models: {outer: {path: x}}")
    assert load_project(inner).file == tmp_path / FILE_NAME
    (tmp_path / "a" / FILE_NAME).write_text("models: {inner: {path: x}}")
    project = load_project(inner)
    assert (project.folder, list(project.spec.models)) == (tmp_path / "a", ["inner"])


def test_a_folder_a_link_or_a_pipe_of_that_name_is_found_and_refused_rather_than_passed_over(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("models: {outer: {path: x}}")
    (tmp_path / "a" / FILE_NAME).mkdir(parents=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / FILE_NAME).symlink_to("gone.yaml")
    (tmp_path / "c").mkdir()
    os.mkfifo(tmp_path / "c" / FILE_NAME)
    for folder, kind in (("a", "a folder"), ("b", "a broken link"), ("c", "a pipe")):
        with pytest.raises(ConfigError, match=f"{folder}/lmgate.yaml: expected a file, got {kind}"):
            load_project(tmp_path / folder)


def test_a_misspelt_file_is_found_and_an_explicit_one_that_is_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "lmgate.yml").touch()
    assert misspelt(tmp_path) == [tmp_path / "lmgate.yml"]
    assert misspelt(tmp_path / "none") == []
    with pytest.raises(ConfigError, match=r"no\.yaml: .*--lmgate-config"):
        load_project(tmp_path, tmp_path / "no.yaml")
    with pytest.raises(ConfigError, match="expected a file, got a folder"):
        load_project(tmp_path, tmp_path)


TEXTS = "datasets: {a: {path: x.csv, prompt: '{q}', references: r"


@pytest.mark.parametrize(
    ("text", "key", "facts"),
    [
        ("- a\n- b\n", "top level", "got a list"),
        ("label: ${CLASS:-small}", "label", "expected variables as in ${RUNNER_CLASS} alone, got '${CLASS:-small}'"),
        ("modles: {}", "modles", "'models'"),
        ("models: []", "models", "got a list"),
        ("devices: []", "devices", "a list that is not empty"),
        ("models: {no: {path: x}}", "models", "got False"),
        ("models: {baseline: {path: x}}", "models.baseline", "expected another name"),
        ("models: {a: models/a}", "models.a", "{path: models/a}"),
        ("datasets: {a: hub:org/a}", "datasets.a", "{hub: org/a}"),
        ("models: {a: }", "models.a", "none of them"),
        ("models: {a: {path: x, hub: o/n}}", "models.a", "got path: and hub:"),
        ("datasets: {a: {split: test}}", "datasets.a", "got neither"),
        ("models: {a: {path: 1}}", "models.a.path", "got 1"),
        ("models: {a: {path: x}, gates: []}", "models.gates", "goes at the start of a line"),
        ("models: {a: {path: x, trust_remote_code: 1}}", "models.a.trust_remote_code", "got 1"),
        ("models: {a: {path: x, load: {trust_remote_code: true}}}", "models.a.load.trust_remote_code", "load:"),
        ("models: {a: {backend: transformers, path: x, load: {subfolder: y}}}", "models.a.load.subfolder", "path:"),
        ("models: {a: {path: x, device: gpu}}", "models.a.device", "'cuda'"),
        ("models: {a: {path: x, device: 'cuda:one'}}", "models.a.device", "'cuda:one'"),
        ("models: {a: {path: x, dtype: torch.float16}}", "models.a.dtype", "'float16'"),
        ("datasets: {a: {path: x.csv, prompt: '{q}', source: q}}", "datasets.a", "prompt, source: "),
        ("datasets: {a: {path: x.csv, question: q, choices: [one, one], answer: b}}", "datasets.a.choices", "'one'"),
        ("datasets: {a: {path: x, limit: many}}", "datasets.a.limit", "'many'"),
        ("datasets: {a: {path: x.jsonl, lines: true}}", "datasets.a.lines", "only text files"),
        ("datasets: {a: {path: x.raw, limit: 100}}", "datasets.a.limit", "lines: true"),
        ("datasets: {a: {path: x.raw, sample: {rows: 100}}}", "datasets.a.sample", "lines: true"),
        ("datasets: {a: {path: x.txt, lines: true, sample: {rows: 9, by: b}}}", "datasets.a.sample.by", "no columns"),
        ("datasets: {a: {path: x.csv, limit: 9, sample: {rows: 9}}}", "datasets.a.sample", "got both"),
        ("datasets: {a: {path: x.csv, sample: {rows: 0}}}", "datasets.a.sample", "{rows: 500, seed: 0, by: subject}"),
        ("datasets: {a: {path: x, task: {file: t, metrics: {acc: higher}}}}", "datasets.a.task", "texts or choices"),
        ("datasets: {a: {path: x.csv, prompt: p, references: r, counted: c}}", "datasets.a.counted", "a perplexity"),
        ("datasets: {a: {path: x.txt, counted: c}}", "datasets.a.counted", "has no columns"),
        ("datasets: {a: {path: x.csv, tokens: 9}}", "datasets.a.tokens", "limit: or sample:"),
        ("datasets: {a: {path: x.txt, lines: true, tokens: 9}}", "datasets.a.tokens", "each line is a row"),
        ("datasets: {a: {path: x.txt, tokens: 0}}", "datasets.a.tokens", "got 0"),
        ("datasets: {a: {path: x.txt, lines: true, cluster: kind}}", "datasets.a.cluster", "no columns"),
        ("datasets: {a: {path: x.csv, split: test}}", "datasets.a.split", "only a hub id"),
        ("datasets: {a: {path: x, revision: main}}", "datasets.a", "name, revision: "),
        ("datasets: {a: {path: x.csv, references: r}}", "datasets.a.references", "prompt:"),
        *[
            (f"datasets: {{a: {{path: x.csv, {begins}: q, {key}: {value}}}}}", f"datasets.a.{key}", "references:")
            for begins in ("prompt", "source", "messages")
            for key, value in (("max_new_tokens", 9), ("extract", "boxed"), ("cluster", "c"), ("average_by", "c"))
        ],
        ("datasets: {a: {path: x.csv, prompt: '{q}', examples: e.csv}}", "datasets.a.examples", "references:"),
        ("datasets: {a: {path: x.csv, question: q, answer: a}}", "datasets.a.question", "choices:"),
        ("datasets: {a: {path: x.csv, target: t, answer: a}}", "datasets.a.target", "it needs question:"),
        ("datasets: {a: {path: x.csv, messages: m, target: t, answer: a}}", "datasets.a.target", "follows one chat"),
        ("datasets: {a: {path: x.csv, question: q, target: t, choices: c}}", "datasets.a.choices", "need answer: too"),
        ("datasets: {a: {path: x.jsonl, question: '{q}?', target: t, answer: a}}", "datasets.a.question", "'{q}?'"),
        (f"{TEXTS}, delimiter: ' '}}}}", "datasets.a.delimiter", "only multiple choice"),
        ("datasets: {a: {path: x.csv, chat: true}}", "datasets.a.chat", "only texts"),
        ("datasets: {a: {path: x.csv, cluster: c}}", "datasets.a.cluster", "only texts"),
        (f"{TEXTS}, extract: [{{regex: {{pattern: (}}}}]}}}}", "datasets.a.extract", "step 1: regex: pattern: "),
        (f"{TEXTS}, extract: {{one: [strip]}}}}}}", "datasets.a.extract.one", "unknown step 'strip'"),
        (f"{TEXTS}, temperature: 0.5}}}}", "datasets.a.temperature", "sampling needs a seed"),
        (f"{TEXTS}, max_new_tokens: 0}}}}", "datasets.a.max_new_tokens", "got 0"),
        (f"{TEXTS}, stop: ''}}}}", "datasets.a.stop", "got ['']"),
        (f"{TEXTS}, chat_template_kwargs: {{x: 1}}}}}}", "datasets.a.chat_template_kwargs", "only a chat uses it"),
        ("datasets: {a: {path: x.csv, extract: boxed}}", "datasets.a.extract", "only generated texts"),
        ("datasets: {a: {path: x.csv, messages: m, references: r, chat: true}}", "datasets.a.chat", "the whole chat"),
        ("datasets: {a: {path: x.csv, messages: m, choices: c}}", "datasets.a.messages", "needs answer:"),
        ("datasets: {a: {path: x, prompt: {begin}}}", "datasets.a.prompt", "quotes: prompt: '{begin}'"),
        ("defaults: {dtype: flaot32}", "defaults.dtype", "'float32'"),
        ("defaults: {batch_size: 0}", "defaults.batch_size", "got 0"),
        ("defaults: {batch_size: true}", "defaults.batch_size", "got True"),
    ],
)
def test_a_wrong_entry_is_named_by_file_and_key(tmp_path: Path, text: str, key: str, facts: str) -> None:
    with pytest.raises(ConfigError) as raised:
        _load(tmp_path, text)
    line = "" if key == "top level" else ":1"
    assert str(raised.value).startswith(f"{tmp_path / FILE_NAME}{line}: {key}: ")
    assert facts in str(raised.value)


WRONG = """
    models:
      a: &a
        path: x
        dtype: fp16
      b:
        <<: *a
        dtype: float16
        load:
          subfolder: y
    datasets:
      d: {path: x.jsonl, limit: many}
"""
# What is wrong with it from top to bottom: the text, what it should be, and where it is.
MENDED = [
    ("fp16", "float16", "5: models.a.dtype: "),
    ("subfolder", "device_map", "10: models.b.load.subfolder: "),
    ("limit: many", "limit: 2", "12: datasets.d.limit: "),
]


def test_a_wrong_key_is_named_by_its_line(tmp_path: Path) -> None:
    text = WRONG
    for wrong, right, where in MENDED:
        with pytest.raises(ConfigError) as raised:
            _load(tmp_path, text)
        assert str(raised.value).startswith(f"{tmp_path / FILE_NAME}:{where}")
        text = text.replace(wrong, right)
    _load(tmp_path, text)


def _doubled(form: str) -> str:
    """Return lines of which each repeats the one before twice."""
    more = (f"k{at + 1}: &a{at + 1} {form.format(f'*a{at}', f'*a{at}')}\n" for at in range(59))
    return "".join(["k0: &a0 {x: 1}\n", *more])


@pytest.mark.parametrize(
    ("text", "line", "facts"),
    [
        ("models: {a: {path: x\n", 2, "expected ',' or '}'"),
        ("datasets: {a: {path: x, prompt: {begin} and}}", 1, "quotes: "),
        ("models:\n  a: {path: x}\n  a: {path: y}\n", 3, "'a' is written twice"),
        ("models: {}\n---\nmodels: {}\n", 2, "a single document"),
        ("models: *nothing", 1, "alias 'nothing'"),
        ("models: {[a]: b}", 1, "unhashable key"),
        ("models:\n\t- a", 2, "'\\t'"),
        ("a: \x01", 0, "#x0001"),
        ("models: 2024-13-45", 0, "month"),
        ("models: {a: {path: !!python/object/apply:os.getcwd []}}", 1, "constructor"),
        ("defaults: {batch_size: 2_5}", 1, "2_5 would be the number 25"),
        ("models: {a: {revision: 1:30}}", 1, "1:30 would be the number 90"),
        ("models: {a: {revision: 010}}", 1, "010 would be the number 8"),
        ("models: 0x_", 0, "base 16"),
        ('datasets:\n  a: {stop: "x\\ud83d"}', 2, "is half of a surrogate pair"),
        ("models: &a {b: *a}", 1, "an alias repeats what it is in itself"),
        pytest.param(_doubled("[{}, {}]"), 19, "more than 1,000,000 values", id="aliases"),
        pytest.param(_doubled("{{<<: [{}, {}]}}"), 19, "more than 1,000,000 values", id="merges"),
        pytest.param("models: " + "[" * 1000, 0, "recursion", id="1000 brackets"),
    ],
)
def test_what_is_not_yaml_is_an_error_that_names_file_and_line(
    tmp_path: Path, text: str, line: int, facts: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        _load(tmp_path, text)
    assert str(raised.value).startswith(f"{tmp_path / FILE_NAME}{f':{line}' if line else ''}: not valid YAML: ")
    assert facts in str(raised.value)


MERGES = """
models:
  fp32: &fp32 {path: models/a, dtype: float32}
  fp16: &fp16 {<<: *fp32, dtype: float16}
  both: {<<: [*fp16, *fp32], batch_size: 2}
  # The library makes b.load before a.load.more, which lies deeper, and rewrites that one's node while it merges.
  a: {path: x, load: {base: &base {one: 1}, more: &more {<<: *base, one: 2}}}
  b: {path: y, load: {<<: *more}}
"""


def test_anchors_and_merges_work_and_a_merged_key_may_be_overridden(tmp_path: Path) -> None:
    models = _load(tmp_path, MERGES).spec.models
    assert models["fp16"] == ModelSpec(path="models/a", dtype="float16")
    assert models["both"] == ModelSpec(path="models/a", dtype="float16", batch_size=2)
    assert models["a"].load["more"] == models["b"].load == {"one": 2}


def _read(folder: Path, text: str) -> tuple[list[YamlGate], list[str]]:
    (folder / "lmgate.yaml").write_text(textwrap.dedent(text).lstrip("\n"))
    return read_gates(folder / "lmgate.yaml")


@pytest.mark.parametrize(
    ("text", "where", "facts"),
    [
        ("gates:", ":1: gates: ", "a list of gates"),
        ("models: {}\ngates: []", ":2: gates: ", "a list of gates"),
        ("gates: {ppl_max: {}}", ":1: gates: ", "got a mapping"),
        ("gate:\n  - ppl_max: {}", ":1: gate: ", "'gates'"),
        ("- gates: []", ": top level: ", "got a list"),
        ("gates:\n  - ppl_max: {limit: 1,\n      limit: 2}", ":3: ", "'limit' is written twice"),
    ],
)
def test_a_list_that_is_none_is_an_error_that_names_the_line(tmp_path: Path, text: str, where: str, facts: str) -> None:
    with pytest.raises(ConfigError) as raised:
        _read(tmp_path, text)
    assert str(raised.value).startswith(f"{tmp_path / 'lmgate.yaml'}{where}")
    assert facts in str(raised.value)


COMMON = "model: int8, dataset: wikitext2"
GATE = "4: gates[1].ppl_max"


@pytest.mark.parametrize(
    ("entry", "where", "facts"),
    [
        ("ppl_max", "4: gates[1]: ", "{model: ..., "),
        ("{}", "4: gates[1]: ", "exactly one marker"),
        ("{ppl_max: {limit: 1}, bpb_max: {limit: 1}}", "4: gates[1]: ", "got ppl_max, bpb_max"),
        ("ppl_max:\n    model: int8\n    limit: 2", "4: gates[1]: ", "indent"),
        ("pl_max: {}", "4: gates[1].pl_max: ", "'ppl_max'"),
        ("ppl_max: [int8, wikitext2, 3]", f"{GATE}: ", "by name"),
        ("ppl_max: {1: x}", f"{GATE}: ", "got 1"),
        (f"ppl_max:\n      {{{COMMON},\n      strid: 8, limit: 3}}", "6: gates[1].ppl_max.strid: ", "'stride'"),
        (f"ppl_max:\n      {{{COMMON},\n      limit: many}}", "6: gates[1].ppl_max.limit: ", "'many'"),
        (f"ppl_max: {{{COMMON}, limit: 1e-3}}", f"{GATE}.limit: ", "1.0e-3"),
        (f"ppl_max: {{{COMMON}, limit: 10,5}}", f"{GATE}: ", "limit: 10.5"),
        (f"ppl_max: {{{COMMON}, max: 9}}", f"{GATE}.max: ", "'limit'"),
        ("ppl_max: {model: no, dataset: d, limit: 9}", f"{GATE}.model: ", "got False"),
        ("ppl_max: {model: m, dataset: , limit: 9}", f"{GATE}.dataset: ", "got nothing"),
        ("ppl_max: {model: 2024-01-01, dataset: d, limit: 9}", f"{GATE}.model: ", "datetime.date(2024, 1, 1)"),
        (f"kl_max: {{{COMMON}, against: fp16, limit: 1}}", "4: gates[1].kl_max.against: ", "'reference'"),
    ],
)
def test_a_wrong_gate_is_named_by_line_and_key(tmp_path: Path, entry: str, where: str, facts: str) -> None:
    good = "ppl_max: {model: int8, dataset: wikitext2, limit: 9}"
    gates, problems = _read(tmp_path, f"models: {{}}\ngates:\n  - {good}\n  - {entry}\n  - {good[:-2]}8}}\n")
    assert [gate.key for gate in gates] == ["gates[0].ppl_max", "gates[2].ppl_max"]  # the others are read all the same
    [problem] = problems
    assert problem.startswith(f"{tmp_path / 'lmgate.yaml'}:{where}")
    assert facts in problem


def test_a_gate_that_is_written_twice_is_an_error_and_one_with_another_limit_is_not(tmp_path: Path) -> None:
    text = """
        gates:
          - ppl_max: {model: [a, b], dataset: d, limit: 3}
          - ppl_max: {model: b, dataset: d, limit: 4}
          - ppl_max: {model: b, dataset: d, limit: 3}
        """
    gates, (problem,) = _read(tmp_path, text)
    assert len(gates) == 4
    assert ":4: gates[2].ppl_max: it is gates[0].ppl_max in line 2 once more" in problem


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


def read_many(folder: Path, text: str) -> tuple[list[YamlGate], list[str]]:
    (folder / FILE_NAME).write_text(text)
    load_project(folder)
    return read_gates(folder / FILE_NAME)


def test_a_short_file_has_the_gates_of_the_file_that_writes_them_out(tmp_path: Path) -> None:
    (short, none), (written, none_either) = read_many(tmp_path, SHORT), read_many(tmp_path, WRITTEN_OUT)
    assert none == none_either == []
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
        _, problems = read_many(tmp_path, text)
    except ConfigError as error:
        problems = [str(error)]
    [problem] = problems
    assert facts in problem
    assert problem.startswith(f"{tmp_path / FILE_NAME}:")


def test_lists_that_multiply_to_more_gates_than_anyone_runs_are_refused_at_once(tmp_path: Path) -> None:
    names, strides = ", ".join(f"m{number}" for number in range(300)), ", ".join(map(str, range(1, 300)))
    entry = f"ppl_max: {{model: [{names}], dataset: [{names}], stride: [{strides}], limit: 2}}"
    gates, (problem,) = read_many(tmp_path, f"gates:\n  - {entry}\n")
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
    (of_short, none), (of_written, _) = read_many(tmp_path, short), read_many(tmp_path, written)
    assert none == []
    assert [each.gate for each in of_short] == [each.gate for each in of_written]


def test_defaults_of_gates_in_a_file_without_gates_are_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("defaults: {device: cpu, stride: 8}\nmodels: {a: {path: x}}\n")
    with pytest.raises(ConfigError, match=r"yaml:1: defaults\.stride: it is for gates, and the file has no gates:"):
        load_project(tmp_path)
