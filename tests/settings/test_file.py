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


def test_a_merge_conflict_is_named_with_its_line(tmp_path: Path) -> None:
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


def test_an_explicit_file_that_is_none_is_an_error_that_names_the_option(tmp_path: Path) -> None:
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
        ("label: ci-$CLASS", "label", "expected variables as in ${RUNNER_CLASS} alone"),
        ("just text", "top level", "got text"),
        ("modles: {}", "modles", "'models'"),
        ("models: []", "models", "got a list"),
        ("models: {no: {path: x}}", "models", "got False"),
        ("models: {baseline: {path: x}}", "models.baseline", "expected another name"),
        ("models: {a: models/a}", "models.a", "{path: models/a}"),
        ("datasets: {a: hub:org/a}", "datasets.a", "{hub: org/a}"),
        ("models: {a: }", "models.a", "none of them"),
        ("models: {a: {path: x, hub: o/n}}", "models.a", "got path: and hub:"),
        ("datasets: {a: {split: test}}", "datasets.a", "got neither"),
        ("models: {a: {path: 1}}", "models.a.path", "got 1"),
        ("models: {a: {path: x}, gates: []}", "models.gates", "goes at the start of a line"),
        ("models: {a: {path: x, load: auto}}", "models.a.load", "got 'auto'"),
        ("models: {a: {path: x, trust_remote_code: 1}}", "models.a.trust_remote_code", "got 1"),
        ("models: {a: {path: x, load: {trust_remote_code: true}}}", "models.a.load.trust_remote_code", "load:"),
        ("models: {a: {backend: transformers, path: x, load: {subfolder: y}}}", "models.a.load.subfolder", "path:"),
        ("models: {a: {path: x, device: gpu}}", "models.a.device", "'cuda'"),
        ("models: {a: {path: x, device: 'cuda:one'}}", "models.a.device", "'cuda:one'"),
        ("models: {a: {path: x, dtype: half}}", "models.a.dtype", "'float16'"),
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
        ("datasets: {a: {path: x.csv, sample: {rows: 9, from: 0}}}", "datasets.a.sample", "'from'"),
        ("datasets: {a: {path: x.csv, sample: 500}}", "datasets.a.sample", "got 500"),
        ("datasets: {a: {path: x, task: {file: t, metrics: {acc: higher}}}}", "datasets.a.task", "texts or choices"),
        ("datasets: {a: {path: x.csv, prompt: p, references: r, counted: c}}", "datasets.a.counted", "a perplexity"),
        ("datasets: {a: {path: x.txt, counted: c}}", "datasets.a.counted", "has no columns"),
        ("datasets: {a: {path: x.csv, tokens: 9}}", "datasets.a.tokens", "limit: or sample:"),
        ("datasets: {a: {path: x.txt, lines: true, tokens: 9}}", "datasets.a.tokens", "each line is a row"),
        ("datasets: {a: {path: x.txt, tokens: 0}}", "datasets.a.tokens", "got 0"),
        ("datasets: {a: {path: x.txt, lines: true, cluster: kind}}", "datasets.a.cluster", "no columns"),
        ("datasets: {a: {path: x.md, text: body}}", "datasets.a.text", "no columns"),
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
        ("datasets: {a: {path: x.csv, max_new_tokens: 9}}", "datasets.a.max_new_tokens", "only generated texts"),
        ("datasets: {a: {path: x.csv, messages: m, references: r, chat: true}}", "datasets.a.chat", "the whole chat"),
        ("datasets: {a: {path: x.csv, messages: m, references: r, source: s}}", "datasets.a.source", "the whole chat"),
        ("datasets: {a: {path: x.csv, messages: m, choices: c}}", "datasets.a.messages", "needs answer:"),
        ("datasets: {a: {path: x, prompt: {begin}}}", "datasets.a.prompt", "quotes: prompt: '{begin}'"),
        ("defaults: {dtype: flaot32}", "defaults.dtype", "'float32'"),
        ("defaults: {batch_size: 0}", "defaults.batch_size", "got 0"),
        ("defaults: {batch_size: true}", "defaults.batch_size", "got True"),
        ("defaults: {batch_size: 2.5}", "defaults.batch_size", "got 2.5"),
    ],
)
def test_a_wrong_entry_is_named_by_file_and_key(tmp_path: Path, text: str, key: str, facts: str) -> None:
    with pytest.raises(ConfigError) as raised:
        _load(tmp_path, text)
    line = "" if key == "top level" else ":1"
    assert str(raised.value).startswith(f"{tmp_path / FILE_NAME}{line}: {key}: ")
    assert facts in str(raised.value)


WRONG = """
    defaults:
      device: gpu
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
      d:
        path: x.jsonl
        limit: many
"""
# What is wrong with it from top to bottom: the text, what it should be, and where it is.
MENDED = [
    ("device: gpu", "device: cuda", "3: defaults.device: "),
    ("fp16", "float16", "7: models.a.dtype: "),
    ("subfolder", "device_map", "12: models.b.load.subfolder: "),
    ("limit: many", "limit: 2", "16: datasets.d.limit: "),
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
        ("models: {a: {path: x, load: {k: {z: 1, z: 2}}}}", 1, "'z' is written twice"),
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
        ("gates: [-1_0.5]", 1, "-1_0.5 would be the number -10.5"),
        ("models: 0x_", 0, "base 16"),
        ('datasets:\n  a: {stop: "x\\ud83d"}', 2, "is half of a surrogate pair"),
        ("models: &a {b: *a}", 1, "an alias repeats what it is in itself"),
        ("models: &a\n  - *a", 1, "an alias repeats what it is in itself"),
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


def test_text_that_is_not_utf_8_is_an_error_that_names_the_byte(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        _load(tmp_path, "models: {é: {path: x}}".encode("latin-1"))
    assert str(raised.value).startswith(f"{tmp_path / FILE_NAME}: ")
    assert "0xe9 at 9" in str(raised.value)


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


def test_an_empty_list_of_devices_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r":1: devices: .*a list that is not empty.*got \[\]"):
        _load(tmp_path, "devices: []")


# The gates: list of lmgate.yaml: read with lines, and every mistake named by line, key and nearest name.


def _read(folder: Path, text: str) -> tuple[list[YamlGate], list[str]]:
    (folder / "lmgate.yaml").write_text(textwrap.dedent(text).lstrip("\n"))
    return read_gates(folder / "lmgate.yaml")


@pytest.mark.parametrize(
    ("text", "where", "facts"),
    [
        ("gates:", ":1: gates: ", "a list of gates"),
        ("models: {}\ngates: []", ":2: gates: ", "a list of gates"),
        ("gates: {ppl_max: {}}", ":1: gates: ", "got a mapping"),
        ("gates: ppl_max", ":1: gates: ", "got 'ppl_max'"),
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
        (f"no_regression: {{metric: ppl, {COMMON}, reference: a, tolerance: 1%}}", "4: gates[1].no_reg", "'against'"),
    ],
)
def test_a_wrong_gate_is_named_by_line_and_key(tmp_path: Path, entry: str, where: str, facts: str) -> None:
    good = "ppl_max: {model: int8, dataset: wikitext2, limit: 9}"
    gates, problems = _read(tmp_path, f"models: {{}}\ngates:\n  - {good}\n  - {entry}\n  - {good[:-2]}8}}\n")
    assert [gate.key for gate in gates] == ["gates[0].ppl_max", "gates[2].ppl_max"]  # the others are read all the same
    [problem] = problems
    assert problem.startswith(f"{tmp_path / 'lmgate.yaml'}:{where}")
    assert facts in problem


def test_a_folder_that_cannot_be_listed_has_no_misspelt_files(tmp_path: Path) -> None:
    (tmp_path / "lmgate.yml").touch()
    assert misspelt(tmp_path) == [tmp_path / "lmgate.yml"]
    assert misspelt(tmp_path / "none") == []


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
