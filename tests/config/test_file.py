"""lmgate.yaml: found upward, decoded whole, and every mistake named by file, key, expectation and nearest name."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from pytest_lmgate.config import FILE_NAME, find_project_file
from pytest_lmgate.config.file import Project, load_project
from pytest_lmgate.config.specs import DatasetSpec, Defaults, ModelSpec, ProjectSpec
from pytest_lmgate.errors import ConfigError


def _load(folder: Path, text: str | bytes) -> Project:
    (folder / FILE_NAME).write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_project(folder)


def test_a_whole_file_becomes_frozen_specs(tmp_path: Path) -> None:
    project = _load(
        tmp_path,
        """
        defaults: {device: cpu, dtype: float32, batch_size: 4}
        models:
          fp16: {path: models/fp16}
          int8: {path: models/int8, load: {device_map: auto, max_memory: {0: 10GiB, cpu: 30GiB}}, batch_size: auto}
          far: {hub: org/name, revision: v1.0, tokenizer: org/other, adapter: adapters/a, trust_remote_code: true}
          old: {path: models/old, pickle_weights: true, dtype: bfloat16, device: "cuda:1"}
        datasets:
          wikitext2: {path: data/wiki.test.raw, text: text}
          rows: {path: data/rows.jsonl, text: body, join: "\\n"}
          lines: {path: data/lines.txt, lines: true, limit: 100}
          far: {hub: org/data, name: plain, split: test, revision: main, text: body}
        """,
    )
    assert project.spec == ProjectSpec(
        defaults=Defaults(device="cpu", dtype="float32", batch_size=4),
        models={
            "fp16": ModelSpec(path="models/fp16"),
            "int8": ModelSpec(
                path="models/int8",
                load={"device_map": "auto", "max_memory": {0: "10GiB", "cpu": "30GiB"}},
                batch_size="auto",
            ),
            "far": ModelSpec(
                hub="org/name", revision="v1.0", tokenizer="org/other", adapter="adapters/a", trust_remote_code=True
            ),
            "old": ModelSpec(path="models/old", pickle_weights=True, dtype="bfloat16", device="cuda:1"),
        },
        datasets={
            "wikitext2": DatasetSpec(path="data/wiki.test.raw"),
            "rows": DatasetSpec(path="data/rows.jsonl", text="body", join="\n"),
            "lines": DatasetSpec(path="data/lines.txt", lines=True, limit=100),
            "far": DatasetSpec(hub="org/data", name="plain", split="test", revision="main", text="body"),
        },
    )
    with pytest.raises(AttributeError):
        project.spec.models["fp16"].path = "elsewhere"
    with pytest.raises(dataclasses.FrozenInstanceError):
        project.folder = tmp_path


def test_what_a_file_leaves_out_has_defaults(tmp_path: Path) -> None:
    spec = _load(tmp_path, "models: {a: {path: x}}\ndatasets: {b: {path: y.jsonl}}").spec
    assert spec.defaults == Defaults(device="auto", dtype="auto", batch_size="auto")
    model, dataset = spec.models["a"], spec.datasets["b"]
    assert (model.dtype, model.device, model.batch_size, model.load) == (None, None, None, {})
    assert (model.trust_remote_code, model.pickle_weights) == (False, False)
    assert (dataset.text, dataset.join, dataset.limit, dataset.lines) == ("text", msgspec.UNSET, None, False)


@pytest.mark.parametrize("text", ["models:\n", "defaults:\ndatasets: {}\n", "\ufeffmodels:", "--- {models: }"])
def test_a_file_with_empty_keys_names_nothing(tmp_path: Path, text: str) -> None:
    assert _load(tmp_path, text).spec == ProjectSpec()


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "\ufeff", " # one\n--- # two\n\n...\n# three"])
def test_a_file_with_nothing_in_it_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="expected models:, datasets: or gates:, got an empty file"):
        _load(tmp_path, text)


def test_a_merge_conflict_is_named_with_its_line(tmp_path: Path) -> None:
    text = "models:\n  a: {path: x}\n<<<<<<< HEAD\n  b: {path: y}\n=======\n  b: {path: z}\n>>>>>>> theirs\n"
    with pytest.raises(ConfigError, match=r"lmgate\.yaml:3: an unresolved merge conflict"):
        _load(tmp_path, text)


def test_a_byte_order_mark_is_not_part_of_the_first_key(tmp_path: Path) -> None:
    assert list(_load(tmp_path, b"\xef\xbb\xbfmodels: {a: {path: x}}").spec.models) == ["a"]


def test_names_may_be_of_any_script(tmp_path: Path) -> None:
    assert list(_load(tmp_path, "models: {모델: {path: x}}").spec.models) == ["모델"]


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


def test_a_folder_or_a_link_of_that_name_is_found_and_refused_rather_than_passed_over(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("models: {outer: {path: x}}")
    (tmp_path / "a" / FILE_NAME).mkdir(parents=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / FILE_NAME).symlink_to("gone.yaml")
    for folder, kind in (("a", "a folder"), ("b", "a link to nothing")):
        with pytest.raises(ConfigError, match=f"{folder}/lmgate.yaml: expected a file, got {kind}"):
            load_project(tmp_path / folder)


def test_without_a_file_nothing_is_named_and_the_message_says_where_it_was_looked_for(tmp_path: Path) -> None:
    project = Project(tmp_path)
    assert project.spec == ProjectSpec()
    assert project.origin == f"no lmgate.yaml was found from {tmp_path} upward"


def test_an_explicit_file_is_taken_before_the_one_that_would_be_found(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("models: {found: {path: x}}")
    other = tmp_path / "ci" / "other.yaml"
    other.parent.mkdir()
    other.write_text("models: {given: {path: x}}")
    project = load_project(tmp_path, other)
    assert (project.file, project.folder, list(project.spec.models)) == (other, other.parent, ["given"])
    assert project.origin == str(other)


def test_an_explicit_file_that_is_not_there_is_an_error_that_names_the_option(tmp_path: Path) -> None:
    missing = tmp_path / "no.yaml"
    with pytest.raises(ConfigError) as raised:
        load_project(tmp_path, missing)
    assert str(raised.value) == f"{missing}: cannot be read: No such file or directory; check --lmgate-config"


def test_a_folder_given_as_the_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a file, got a folder"):
        load_project(tmp_path, tmp_path)


def test_paths_are_relative_to_the_file_and_may_be_absolute_or_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    project = Project(tmp_path / "repo")
    assert project.path("models/a") == tmp_path / "repo" / "models" / "a"
    assert project.path("/elsewhere/a") == Path("/elsewhere/a")
    assert project.path("~/a") == tmp_path / "home" / "a"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", ": top level: expected keys with values, got a list"),
        ("just text", ": top level: expected keys with values, got text"),
        ("42", ": top level: expected keys with values, got int"),
        ("modles: {}", ": modles: unknown key (did you mean 'models'?); expected one of defaults, models, datasets"),
        ("models: []", ": models: expected keys with values, got a list"),
        ("models: false", ": models: expected keys with values, got bool"),
        ("defaults: 0", ": defaults: expected keys with values, got int"),
        ("datasets: ''", ": datasets: expected keys with values, got text"),
        ("models: {no: {path: x}}", ": models: expected names that are text, got False; put it in quotes"),
        ("datasets: {2: {path: x}}", ": datasets: expected names that are text, got 2; put it in quotes"),
        ("models: {a: models/a}", ": models.a: expected keys with values, got text; say a: {path: models/a}"),
        ("datasets: {a: hub:org/a}", ": datasets.a: expected keys with values, got text; say a: {hub: org/a}"),
        ("models: {a: }", ": models.a: expected exactly one of path:, hub: and server:, got none of them"),
        ("models: {a: {path: ''}}", ": models.a: expected exactly one of path:, hub: and server:, got none of them"),
        (
            "models: {a: {path: x, hub: o/n}}",
            ": models.a: expected exactly one of path:, hub: and server:, got path: and hub:",
        ),
        ("datasets: {a: {split: test}}", ": datasets.a: expected exactly one of path: and hub:, got neither"),
        (
            "datasets: {a: {path: x, joint: ''}}",
            ": datasets.a.joint: unknown key (did you mean 'join'?); expected one of ",
        ),
        ("models: {a: {path: x, 1: y}}", ": models.a.1: unknown key; expected one of path, hub, "),
        ("models: {a: {path: 1}}", ": models.a.path: expected `str | null`, got `int`"),
        ("models: {a: {path: x, load: auto}}", ": models.a.load: expected `object`, got `str`"),
        ("models: {a: {path: x, load: {yes: 1}}}", ": models.a.load: key: expected `str`, got `bool`"),
        ("models: {a: {path: x, trust_remote_code: 1}}", ": models.a.trust_remote_code: expected `bool`, got `int`"),
        ("defaults: {yes: 3}", ": defaults.True: unknown key; expected one of device, dtype, batch_size"),
        (
            "datasets: {a: {path: x.csv, prompt: '{q}', source: q}}",
            ": datasets.a: prompt, source: expected one of them, got both; source: column is short for prompt: ",
        ),
        (
            "datasets: {a: {path: x.csv, question: q, choices: [one, two, one], answer: b}}",
            ": datasets.a.choices: the column 'one' is listed twice: no model could tell them apart",
        ),
        ("datasets: {a: {path: x, limit: many}}", ": datasets.a.limit: expected `int | null`, got `str`"),
        ("datasets: {a: {path: x, limit: true}}", ": datasets.a.limit: expected `int | null`, got `bool`"),
        ("datasets: {a: {path: x, limit: 0}}", ": datasets.a.limit: expected a number of rows from 1, got 0"),
        (
            "datasets: {a: {path: x.jsonl, lines: true}}",
            ": datasets.a.lines: only a text file is read by lines; the other formats have rows of their own",
        ),
        (
            "datasets: {a: {path: x.raw, limit: 100}}",
            ": datasets.a.limit: it counts rows, but a text file is one text; say lines: true, or shorten it",
        ),
        (
            "datasets: {a: {path: x.txt, lines: true, cluster: kind}}",
            ": datasets.a.cluster: a text file has no columns; use .jsonl, .csv, .tsv or .parquet",
        ),
        ("datasets: {a: {path: x.md, text: body}}", ": datasets.a.text: a text file has no columns; use .jsonl, .csv"),
        (
            "datasets: {a: {path: x.txt, join: ''}}",
            ": datasets.a.join: it stands between rows, but a text file is one text; say lines: true",
        ),
        (
            "datasets: {a: {path: x.csv, split: test}}",
            ": datasets.a.split: only a hub id has splits, or a folder saved by datasets",
        ),
        (
            "datasets: {a: {path: x.csv, prompt: '{q}'}}",
            ": datasets.a.prompt: texts to write and to compare need references: beside prompt:",
        ),
        (
            "datasets: {a: {path: x.csv, references: a}}",
            ": datasets.a.references: texts to write and to compare need prompt: or source: beside references:",
        ),
        (
            "datasets: {a: {path: x.csv, question: q, answer: a}}",
            ": datasets.a.question: a multiple-choice dataset needs choices: beside question: and answer:",
        ),
        (
            "datasets: {a: {path: x.csv, prompt: '{q}', references: a, delimiter: ' '}}",
            ": datasets.a.delimiter: only multiple choice has it: question:, choices: and answer:",
        ),
        *(
            (
                f"datasets: {{a: {{path: x.csv, {key}}}}}",
                f": datasets.a.{key.partition(':')[0]}: only texts (prompt: or",
            )
            for key in ("chat: true", "system: s", "examples: e.csv", "cluster: c")
        ),
        ("models: {a: {backend: transformers, path: x, load: {subfolder: y}}}", ": models.a.load.subfolder: say path:"),
        ("datasets: {a: {path: x, revision: main}}", ": datasets.a: name, revision: only a hub id has them"),
        (
            "models: {a: {path: x, load: {torch_dtype: float16}}}",
            ": models.a.load.torch_dtype: say dtype: beside load:, not inside it",
        ),
        (
            "models: {a: {path: x, load: {trust_remote_code: true}}}",
            ": models.a.load.trust_remote_code: say trust_remote_code: beside load:, not inside it",
        ),
        (
            "models: {a: {path: x, load: {use_safetensors: false}}}",
            ": models.a.load.use_safetensors: say pickle_weights: beside load:, not inside it",
        ),
        (
            "defaults: {dtype: flaot32}",
            ": defaults.dtype: expected one of auto, float64, float32, bfloat16, float16; got 'flaot32' "
            "(did you mean 'float32'?)",
        ),
        ("models: {a: {path: x, device: gpu}}", ": models.a.device: expected one of auto, cuda, mps, cpu, xpu, or "),
        ("models: {a: {path: x, device: 'cuda:one'}}", "; got 'cuda:one'"),
        ("models: {a: {path: x, device: 'auto:1'}}", "; got 'auto:1'"),
        (
            "defaults: {batch_size: 0}",
            ": defaults.batch_size: expected auto or a whole number of windows from 1, got 0",
        ),
        (
            "defaults: {batch_size: big}",
            " defaults.batch_size: expected auto or a whole number of windows from 1, got 'big'",
        ),
        ("defaults: {batch_size: true}", ": defaults.batch_size: expected `int | str`, got `bool`"),
        ("defaults: {batch_size: 2.5}", ": defaults.batch_size: expected `int | str`, got `float`"),
    ],
)
def test_a_wrong_entry_is_named_by_file_and_key_with_what_was_expected(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        _load(tmp_path, text)
    line = "" if "top level" in message else ":1"
    assert str(raised.value).startswith(f"{tmp_path / FILE_NAME}{line}: ")
    assert message in str(raised.value)


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
# What is wrong with it from top to bottom: the text, what it should be, and the message.
MENDED = [
    ("device: gpu", "device: cuda", "3: defaults.device: expected one of auto, cuda, mps, cpu, xpu, or one of several"),
    ("fp16", "float16", "7: models.a.dtype: expected one of auto, float64, float32, bfloat16, float16; got 'fp16'"),
    ("subfolder", "device_map", "12: models.b.load.subfolder: say path: beside load:"),
    ("limit: many", "limit: 2", "16: datasets.d.limit: expected `int | null`, got `str`"),
]


def test_a_wrong_key_is_named_by_its_line(tmp_path: Path) -> None:
    text = WRONG
    for wrong, right, message in MENDED:
        with pytest.raises(ConfigError) as raised:
            _load(tmp_path, text)
        assert str(raised.value).startswith(f"{tmp_path / FILE_NAME}:{message}")
        text = text.replace(wrong, right)
    _load(tmp_path, text)


def test_a_wrong_key_that_is_merged_in_is_named_by_the_line_it_is_written_in(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lmgate.yaml:3: models.a.dtype: expected one of"):
        _load(tmp_path, "models:\n  a:\n    dtype: float33\n    <<: {path: x, dtype: float32}")
    with pytest.raises(ConfigError, match=r"lmgate.yaml:4: models.a.dtype: expected one of"):
        _load(tmp_path, "models:\n  a:\n    path: x\n    <<: {dtype: float33}")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("device: gpu", "cuda"),
        ("device: GPU", "cuda"),
        ("device: CUDA", "cuda"),
        ("dtype: fp16", "float16"),
        ("dtype: half", "float16"),
        ("dtype: BF16", "bfloat16"),
        ("dtype: fp32", "float32"),
        ("dtype: torch.float16", "float16"),
    ],
)
def test_other_words_for_a_device_or_a_dtype_are_known(tmp_path: Path, written: str, meant: str) -> None:
    with pytest.raises(ConfigError) as raised:
        _load(tmp_path, f"models: {{a: {{path: x, {written}}}}}")
    assert f"(did you mean {meant!r}?)" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "prompt: {begin}",
            ":1: datasets.a.prompt: expected `str | null`, got `object`; put it in quotes: prompt: '{begin}'",
        ),
        ("prompt: {begin} and", ":1: not valid YAML: while parsing a flow mapping, expected ',' or '}', but got"),
        ("question: {q}", "; put it in quotes: question: '{q}'"),
    ],
)
def test_a_template_without_quotes_is_told_to_have_them(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        _load(tmp_path, f"datasets: {{a: {{path: x, {text}}}}}")
    assert message in str(raised.value)
    assert "in quotes: " in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: {a: {path: x\n", ":2: not valid YAML: while parsing a flow mapping, expected ',' or '}', but got"),
        ("models:\n  a: {path: x}\n  a: {path: y}\n", ":3: not valid YAML: key 'a' is written twice"),
        ("models: {}\ndatasets: {}\nmodels: {}\n", ":3: not valid YAML: key 'models' is written twice"),
        ("models: {a: {path: x, load: {k: {z: 1, z: 2}}}}", ":1: not valid YAML: key 'z' is written twice"),
        ("models: {}\n---\nmodels: {}\n", ":2: not valid YAML: expected a single document in the stream"),
        ("models: *nothing", ":1: not valid YAML: found undefined alias 'nothing'"),
        ("models: {[a]: b}", ":1: not valid YAML: while constructing a mapping, found unhashable key"),
        ("models:\n\t- a", ":2: not valid YAML: while scanning for the next token, found character '\\t'"),
        ("a: \x01", ": not valid YAML: unacceptable character #x0001"),
        ("models: 2024-13-45", ": not valid YAML: month must be in 1..12"),
        (
            "defaults: {batch_size: 2_5}",
            ":1: not valid YAML: 2_5 would be the number 25; write a number in plain digits",
        ),
        ("models: {a: {revision: 1:30}}", ":1: not valid YAML: 1:30 would be the number 90; write a number in plain"),
        ("models: {a: {revision: 010}}", ":1: not valid YAML: 010 would be the number 8; "),
        ("gates: [-1_0.5]", ":1: not valid YAML: -1_0.5 would be the number -10.5; "),
        ("models: 0x_", ": not valid YAML: invalid literal for int() with base 16"),
        pytest.param("models: " + "[" * 3000, ": not valid YAML: maximum recursion depth", id="3000 brackets"),
    ],
)
def test_what_is_not_yaml_is_an_error_that_names_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        _load(tmp_path, text)
    assert str(raised.value).startswith(f"{tmp_path / FILE_NAME}{message}")


def test_yaml_cannot_make_python_objects(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="could not determine a constructor for the tag"):
        _load(tmp_path, "models: {a: {path: !!python/object/apply:os.getcwd []}}")


def test_text_that_is_not_utf_8_is_an_error_that_names_the_byte(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        _load(tmp_path, "models: {é: {path: x}}".encode("latin-1"))
    assert str(raised.value) == f"{tmp_path / FILE_NAME}: expected UTF-8 text, got byte 0xe9 at 9"


def test_anchors_and_merges_work_and_a_merged_key_may_be_overridden(tmp_path: Path) -> None:
    spec = _load(
        tmp_path,
        """
        models:
          fp32: &fp32 {path: models/a, dtype: float32}
          fp16: &fp16 {<<: *fp32, dtype: float16}
          both: {<<: [*fp16, *fp32], batch_size: 2}
        """,
    ).spec
    assert spec.models["fp16"] == ModelSpec(path="models/a", dtype="float16")
    assert spec.models["both"] == ModelSpec(path="models/a", dtype="float16", batch_size=2)


def test_a_merge_from_a_deeper_entry_is_not_taken_for_a_key_written_twice(tmp_path: Path) -> None:
    # The library makes b.load before a.load.more, which lies deeper, and rewrites that one's node while it merges.
    spec = _load(
        tmp_path,
        """
        models:
          a: {path: x, load: {base: &base {one: 1}, more: &more {<<: *base, one: 2}}}
          b: {path: y, load: {<<: *more}}
        """,
    ).spec
    assert spec.models["a"].load["more"] == {"one": 2}
    assert spec.models["b"].load == {"one": 2}


def test_plain_numbers_are_what_they_look_like(tmp_path: Path) -> None:
    written = "{a: 0, b: 10, c: -1.5, d: 1.0e-3, e: 0x10, f: .5, g: 0.05, h: +3, i: '1:30', j: '2_5', k: -.inf}"
    load = _load(tmp_path, f"models: {{m: {{path: x, load: {written}}}}}").spec.models["m"].load
    assert list(load.values()) == [0, 10, -1.5, 0.001, 16, 0.5, 0.05, 3, "1:30", "2_5", float("-inf")]
