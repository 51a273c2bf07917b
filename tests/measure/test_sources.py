"""What a gate's arguments stand for, found without torch."""

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.errors import ConfigError, DataError, ModelError
from pytest_lmgate.measure.evaluator import Resolver
from pytest_lmgate.settings.entries import DatasetSpec, ModelSpec
from tests.measure import entries


@pytest.fixture
def resolver(workplace: Any) -> Resolver:
    return workplace.session().evaluator.resolver


@pytest.mark.parametrize(
    ("given", "spec"),
    [
        ("float", ModelSpec(path="models/float")),
        *[(each, ModelSpec(path=each)) for each in ("models/float", "./models/gone", "~/models/gone", "a/b/c")],
        (Path("float"), ModelSpec(path="float")),
        ("org/name", ModelSpec(hub="org/name")),
        *[(f"{hub}org/name@v1", ModelSpec(hub="org/name", revision="v1")) for hub in ("", "hub:")],
        *[(f"hub:{each}", ModelSpec(hub=each)) for each in ("gpt2", "models/int8")],
        ("text", DatasetSpec(path="data/text.txt")),
        *[(each, DatasetSpec(path=each)) for each in ("data/text.txt", "gone.txt", "data/gone.txt", "./saved")],
        *[(each, DatasetSpec(path=each)) for each in ("org/data.CSV", "lmgate.yaml")],
        (Path("data/rows.jsonl"), DatasetSpec(path="data/rows.jsonl")),
        *[(each, DatasetSpec(hub=each)) for each in ("org/data", "org/data.v2")],
        *[(f"hub:{each}", DatasetSpec(hub=each)) for each in ("squad", "data/words")],
    ],
)
def test_what_is_given_is_a_name_before_a_path_before_a_hub_id(resolver: Resolver, given: Any, spec: Any) -> None:
    find = resolver.names.model if isinstance(spec, ModelSpec) else resolver.names.dataset
    assert find(given).spec == spec


def test_an_unknown_name_is_an_error_with_the_nearest_and_all_there_are(resolver: Resolver, workplace: Any) -> None:
    file = workplace.folder / "lmgate.yaml"
    with pytest.raises(ConfigError, match=rf"'flaot' is not known \(did you mean 'float'\?\); {file} has .*: float, h"):
        resolver.names.model("flaot")
    for given in ("txt", "text.v2"):
        with pytest.raises(ConfigError, match=rf"{given}' is not known \(did you mean 'text'\?\); .* text, rows;"):
            resolver.names.dataset(given)
    with pytest.raises(ConfigError, match=r"put a text in a list: \[text\]$"):
        resolver.names.dataset("It rained.")


def test_what_is_in_a_folder_of_the_project_by_its_first_part_is_no_hub_id(resolver: Resolver, workplace: Any) -> None:
    folder = workplace.folder / "models"
    with pytest.raises(ConfigError, match=rf"there is no flaot in {folder} .*'float'.*; .* written hub:models/flaot$"):
        resolver.names.model("models/flaot")
    with pytest.raises(ConfigError, match=r"^model 'models/q4@v1': there is no q4@v1 in .*/models;"):
        resolver.names.model("models/q4@v1")
    with pytest.raises(ConfigError, match=r"^dataset 'data/wrods': there is no wrods in .*/data;"):
        resolver.names.dataset("data/wrods")
    with pytest.raises(ConfigError, match=r"^tokenizer 'models/flaot': there is no flaot in "):
        _ingredients(workplace, "{path: models/float, tokenizer: models/flaot}")


LONG = "It was a dark and stormy night. " * 300


@pytest.mark.parametrize("given", [LONG, f"./{LONG}", LONG.replace(" ", "/"), "One line.\nAnd another.txt", "a\0b.txt"])
def test_a_text_in_place_of_a_name_is_refused_in_one_line(resolver: Resolver, given: str) -> None:
    for kind, find in (("dataset", resolver.corpus), ("model", resolver.names.model)):
        with pytest.raises(ConfigError) as raised:
            find(given)
        said = str(raised.value)
        assert said.startswith(f"{kind}: expected ")
        assert f"got {len(given):,} characters that begin {given[:40]!r}" in said


@pytest.mark.parametrize("written", [LONG, "a\0b", "~nobody-of-that-name/x"])
def test_a_path_that_none_can_be_is_an_error_wherever_it_is_written(
    resolver: Resolver, workplace: Any, written: str
) -> None:
    for find in (resolver.corpus, resolver.rows, resolver.model):
        with pytest.raises(ConfigError, match="cannot be a path: "):
            find(Path(written))
    for key in ("tokenizer", "adapter"):
        with pytest.raises(ConfigError, match="cannot be a path: "):
            _ingredients(workplace, f"{{path: models/float, {key}: {json.dumps(written)}}}")


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"text": ["a"]}, "got dict; give one of its splits, or a list of rows"),
        ({"a", "b"}, "got set, whose order changes: put its elements in a list"),
        (frozenset("ab"), "got frozenset, whose order changes: put its elements in a list"),
        (b"a text", "got bytes; decode it, and put the text in a list"),
        (list, "got type"),
    ],
)
def test_what_has_no_rows_in_an_order_is_refused_with_what_to_do(resolver: Resolver, given: Any, hint: str) -> None:
    for read, of in ((resolver.corpus, "texts"), (resolver.rows, "rows")):
        with pytest.raises(ConfigError) as raised:
            read(given)
        assert str(raised.value).endswith(f" or a list of {of}, {hint}")


def test_a_dataframe_is_its_rows_not_the_names_of_its_columns(resolver: Resolver) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": ["one", "two"], "n": [1, 2]}, index=["x", "y"])
    assert resolver.corpus(frame).rows == ("one", "two")
    assert resolver.corpus(frame).name == "in-memory DataFrame"
    assert resolver.corpus(frame["text"]).rows == ("one", "two")
    assert resolver.rows(frame).rows == ({"text": "one", "n": 1}, {"text": "two", "n": 2})
    with pytest.raises(DataError, match="row 0: no column 'text'; it has n"):
        resolver.corpus(frame[["n"]])
    with pytest.raises(DataError, match="row 1: column 'text': expected text, got NoneType"):
        resolver.corpus(pandas.DataFrame({"text": ["one", None]}))
    with pytest.raises(DataError, match=r"expected columns of different names, got \['n', 'n'\]"):
        resolver.corpus(frame[["n", "n"]])
    with pytest.raises(DataError, match="expected text, got none"):
        resolver.corpus(frame[:0])
    assert resolver.corpus(row for row in ["one"]).name == "in-memory generator"


def _ingredients(workplace: Any, entry: str, **options: Any) -> dict[str, str]:
    file = workplace.folder / "lmgate.yaml"
    file.write_text(f"defaults: {{device: cpu}}\nmodels: {{m: {entry}}}\n")
    return dict(workplace.session(**options).evaluator.resolver.model("m").ingredients)


def test_what_can_change_a_number_is_an_ingredient_and_nothing_else(workplace: Any) -> None:
    plain = _ingredients(workplace, "{path: models/float}")
    (workplace.folder / "models" / "float" / "README.md").write_text("about it")
    for path, more in (("./models", ""), ("models", ", batch_size: 3"), ("models", ", tokenizer: models/float")):
        assert _ingredients(workplace, f"{{path: {path}/float{more}}}") == plain
    assert _ingredients(workplace, "{path: models/float}", offline=True, workers=4) == plain
    for entry in ("{path: models/float, dtype: bfloat16}", "{path: models/float, load: {attn_implementation: eager}}"):
        assert _ingredients(workplace, entry) != plain
    assert _ingredients(workplace, "{path: models/float, device: 'cuda:1'}")["device"] == "cuda"
    assert _ingredients(workplace, "{path: models/float}", device="cuda")["device"] == "cuda"
    (workplace.folder / "models" / "float" / "modeling_own.py").write_text("x = 1")
    assert _ingredients(workplace, "{path: models/float}") != plain


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{path: models/float, adapter: models/gone}", "no such folder: "),
        ("{path: models/float, adapter: models/float}", "no adapter_config.json in "),
        ("{path: models/float, load: {x: /proc/self/mem}}", "/proc/self/mem: cannot be read: Input/output error"),
        ("{path: models/float, tokenizer: data}", "no tokenizer in "),
        ("{path: models/float, tokenizer: ./gone}", r"no such folder: .*/gone; check its tokenizer:$"),
    ],
)
def test_a_model_whose_files_are_not_there_is_an_error_before_anything_is_loaded(
    workplace: Any, entry: str, message: str
) -> None:
    with pytest.raises(ModelError, match=f"^model 'm': {message}"):
        _ingredients(workplace, entry)


def test_an_adapter_in_pickle_files_is_refused_like_a_model(workplace: Any) -> None:
    adapter = workplace.folder / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"no weights in .*adapter"):
        _ingredients(workplace, "{path: models/float, adapter: adapter}")
    (adapter / "adapter_model.bin").write_bytes(b"pickle")
    with pytest.raises(ModelError, match=r"only as pickle \(adapter_model\.bin\)"):
        _ingredients(workplace, "{path: models/float, adapter: adapter}")
    permitted = _ingredients(workplace, "{path: models/float, adapter: adapter, pickle_weights: true}")
    assert "adapter/adapter_model.bin" in permitted
    assert "peft" in permitted


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"backend": "mine"}, "backend: expected one of transformers, .*; got 'mine'; only pytest reads conftest"),
        ({"backend": "transformer"}, r"backend: expected one of .* \(did you mean 'transformers'\?\)$"),
        ({"path": None, "backend": "transformers"}, " the engine transformers expects path: or hub:"),
        ({"key": "TOKEN"}, "key: the engine transformers does not support it: it is for a model with server:"),
    ],
)
def test_an_engine_that_is_none_is_an_error(workplace: Any, keys: dict[str, Any], message: str) -> None:
    entries.entry(workplace, "float", section="models", **keys)
    with pytest.raises(ConfigError, match=f"models.float.{message}"):
        workplace.session().evaluator.resolver.model("float")
