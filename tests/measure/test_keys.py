"""No key of a dataset or a model and no argument of a gate is accepted and unused.

It is an error, or it changes what is measured or judged.
"""

import functools
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_lmgate.engines.registry import BACKENDS
from pytest_lmgate.errors import LmgateError
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.measure.targets import tags_of
from pytest_lmgate.settings.decoding import REQUESTS, TEXTS, flat_fields, parse_fixture_call
from pytest_lmgate.settings.entries import DatasetSpec, ModelSpec, Project, ProjectSpec, RowSample
from pytest_lmgate.settings.gate_options import PROTOCOL_RULES, GenerationRequest
from pytest_lmgate.settings.gates import LimitGate
from pytest_lmgate.settings.metrics import FIXTURES
from pytest_lmgate.settings.session import Options
from tests.end_to_end.writers import CONTEXT, models_that_write
from tests.engines.fair_die import Dice

ROWS = """\
{"text": "one two", "own": "two three", "start": "one", "options": ["two", "six"], "label": 0, "right": 1, "kind": "a"}
{"text": "six seven", "own": "one two", "start": "six", "options": ["seven", "one"], "label": 0, "right": 1, "kind": 2}
"""
SAMPLED = ("seed", "temperature", "top_p", "top_k")
WRITES = {"source": "text", "references": "own"}
ASKS = {"question": "text", "choices": "options", "answer": "label"}
# What reads a dataset: the fixture that measures, its models, and the keys that such a dataset needs.
USES: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "text": ("ppl_of", ("counter",), {"path": "text.txt"}),
    "rows": ("ppl_of", ("counter",), {"path": "rows.jsonl"}),
    "divergence": ("kl_of", ("counter", "even"), {"path": "rows.jsonl"}),
    "masked": ("pppl_of", ("masked",), {"path": "rows.jsonl"}),
    "begun": ("self_kl_of", ("counter",), {"path": "rows.jsonl"}),
    "texts": ("exact_of", ("counter",), {"path": "rows.jsonl", **WRITES}),
    "choices": ("accuracy_of", ("counter",), {"path": "rows.jsonl", **ASKS}),
    "pairs": ("ppl_of", ("translator",), {"path": "rows.jsonl", **WRITES}),
}
# Every key of a dataset with another value than its default, and than those above.
KEYS: dict[str, Any] = {
    "path": "more.jsonl", "hub": "org/name", "name": "plain", "split": "test", "revision": "main", "text": "own",
    "join": " ", "limit": 1, "lines": True, "prompt": "{start} six", "source": "start", "references": "start",
    "chat": True, "system": "one", "examples": "shots.jsonl", "question": "start", "choices": ["own", "start"],
    "answer": "right", "delimiter": ": ", "cluster": "kind", "tags": "kind", "extract": "letter", "max_new_tokens": 5,
    "num_beams": 2, "stop": ["six"], "truncate": "left", "seed": 1, "temperature": 0.5, "top_p": 0.5, "top_k": 2,
    "messages": "turns", "chat_template_kwargs": {"thinks": False},
    "sample": RowSample(1), "tokens": 2, "target": "own", "average_by": "kind", "repeats": 2,
    "counted": "own",
}  # fmt: skip
# These need other keys, or none.
NOT_ALONE = {*SAMPLED, "messages", "chat_template_kwargs", "tokens", "target", "repeats", "counted"}
OF_TEXTS = {"extract", "max_new_tokens", "num_beams", "stop"}
# What is no error but of no use to this metric: another one of the same dataset reads it.
BEGINS = {"prompt", "source", "messages"}
OF_OTHERS = {
    **dict.fromkeys(("text", "rows", "divergence", "masked"), BEGINS),
    "texts": {"text", "join"},
    "choices": {"text", "join", "prompt", "source"},
    "pairs": {"text", "join", *OF_TEXTS},
}
OF_THE_HUB = {"hub", "name", "split", "revision"}
OF_ROWS = {"path", "text", "join", "limit", "sample", "tags", "counted"}
ERRORS = {
    "text": KEYS.keys() - {"path", "lines", "tokens"} - BEGINS,
    **dict.fromkeys(("rows", "divergence", "masked"), KEYS.keys() - OF_ROWS - BEGINS),
    "begun": KEYS.keys() - OF_ROWS - {"prompt", "source"},
    "texts": {*OF_THE_HUB, "lines", "prompt", "question", "choices", "answer", "delimiter", *NOT_ALONE},
    "choices": {*OF_THE_HUB, "lines", "references", *NOT_ALONE, *OF_TEXTS},
}
ERRORS["pairs"] = {*ERRORS["texts"], "cluster", "average_by"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    files = {"text.txt": "one two\nthree four\n", "rows.jsonl": ROWS, "more.jsonl": ROWS.replace("seven", "five")}
    files["shots.jsonl"] = ROWS.replace("one", "five").replace("six", "four")
    files["long.jsonl"] = 2 * f'{{"text": "{"one two six " * CONTEXT}"}}\n'
    for file, text in files.items():
        (folder / file).write_text(text)
    return folder


@pytest.fixture(scope="module")
def session(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Evaluator:
    """An evaluator with the models, which looks at the session's code once."""
    made = Evaluator(_project(place, tmp_path_factory.getbasetemp()), Options(cache=place / "cache"))
    made.forget(share=True)
    return made


def _project(folder: Path, base: Path) -> Project:
    """Name the models; those of texts have a chat template."""
    made = models_that_write(base)
    models = {name: ModelSpec(path=str(made / name)) for name in ("even", "backward", "masked")}
    for name in ("counter", "translator"):
        shutil.copytree(made / name, folder / name)
        (folder / name / "chat_template.jinja").write_text("{{ messages[-1].content }} ")
        models[name] = ModelSpec(path=name)
    return Project(folder, folder / "lmgate.yaml", ProjectSpec(models=models))


def _with_dataset(session: Evaluator, keys: Mapping[str, Any]) -> Evaluator:
    project = session.project
    spec = ProjectSpec(models=project.spec.models, datasets={"d": DatasetSpec(**keys)})
    return session.for_project(Project(project.folder, project.file, spec))


def _seen(session: Evaluator, use: str, keys: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """What is measured and compared, and by what it is split; None for an error."""
    fixture, models, _ = USES[use]
    try:
        evaluator = _with_dataset(session, keys)
        arguments = (models[0], "d") if len(models) == 1 else (models[0], models[1], "d")
        asked = parse_fixture_call(fixture, arguments, {})
        measurement, _ = evaluator.cached_statistics(asked)
        return measurement.fingerprint.address, measurement.shared, tags_of(evaluator, asked)
    except LmgateError:
        return None


@pytest.fixture(scope="module")
def seen(session: Evaluator) -> Callable[..., tuple[Any, ...] | None]:
    """What is seen by a use of the dataset of another, plain or with one more key; each is looked up once."""
    return functools.cache(
        lambda by, dataset, key=None: _seen(session, by, {**USES[dataset][2], **({key: KEYS[key]} if key else {})})
    )


def test_every_key_of_a_dataset_is_tried() -> None:
    # Only the metric task reads task:, for which tests/tools/tasks has an installed task.
    assert KEYS.keys() | {"task"} == {field.name for field in msgspec.structs.fields(DatasetSpec)}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("use", USES)
def test_no_key_of_a_dataset_is_accepted_and_unused(seen: Callable[..., Any], use: str, key: str) -> None:
    before, after = seen(use, use), seen(use, use, key)
    assert before is not None
    assert (after is None) == (key in ERRORS[use]), after
    if key in OF_OTHERS.get(use, ()):
        assert after == before
        by = "texts" if key in OF_TEXTS else "begun" if key in BEGINS else "rows"
        before, after = seen(by, use), seen(by, use, key)
    assert after != before


OF_SERVERS = {"server", "model", "key"}
OF_COMMANDS = {"command", "env", "content", "versions", "requires"}
OF_CODE = {"trust_remote_code", "pickle_weights"}
NONE = {"hub", "results", "trust"}  # what no engine here takes
BY_TOKENS = {"tokenizer": "counter", "load": {"context": 64}, "revision": "1"}
# Entries of models, and what no model of the engine takes. Of engines that are not installed here only that is tried.
ENGINES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "transformers": ({"path": "counter"}, NONE | OF_SERVERS | OF_COMMANDS),
    "vllm": ({"path": "counter", "backend": "vllm"}, NONE | OF_SERVERS | OF_COMMANDS | {"adapter"}),
    "server": (
        {"server": "http://localhost:9/v1", "model": "m", **BY_TOKENS},
        NONE | OF_CODE | OF_COMMANDS | {"path", "adapter", "dtype", "device", "batch_size"},
    ),
    "command": (
        {"command": "score", **BY_TOKENS},
        NONE | OF_CODE | OF_SERVERS | {"path", "adapter", "dtype", "device"},
    ),
    **dict.fromkeys(
        ("onnx", "llama.cpp"),
        ({"path": "a.onnx"}, NONE | OF_CODE | OF_SERVERS | OF_COMMANDS | {"adapter", "dtype"}),
    ),
}
MODEL_KEYS: dict[str, Any] = {
    "path": "backward", "hub": "org/name", "server": "http://localhost:7/v1", "model": "n", "key": "LMGATE_TEST_KEY",
    "results": "out", "trust": "hub",
    "revision": "2", "tokenizer": "backward", "adapter": "adapter", "load": {"context": 32}, "dtype": "float16",
    "device": "cuda:1", "batch_size": 3, "chat_template_kwargs": {"thinks": False},
    "trust_remote_code": True, "pickle_weights": True, "command": "other", "env": {"A": "b"}, "content": ["counter"],
    "versions": ["numpy"], "requires": {"command": "adb"},
}  # fmt: skip


# The models that are one file, and what it holds.
SINGLE_FILES = {"six.die": '{"sides": 6}'}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two models of which one has other weights and another tokenizer, one in pickle, and an adapter."""
    folder, made = tmp_path_factory.mktemp("models"), models_that_write(tmp_path_factory.getbasetemp())
    for name in ("counter", "backward"):
        shutil.copytree(made / name, folder / name)
    for name, text in SINGLE_FILES.items():
        (folder / "counter" / name).write_text(text)
    with (folder / "backward" / "tokenizer.json").open("a") as file:
        file.write("\n")
    shutil.copytree(made / "counter", folder / "pickled")
    (folder / "pickled" / "model.safetensors").rename(folder / "pickled" / "pytorch_model.bin")
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text("{}")
    (folder / "adapter" / "adapter_model.safetensors").touch()
    return folder


@pytest.fixture(scope="module")
def described(models: Path) -> Callable[[str], Any]:
    """What is known of the model of an engine without further keys; each is looked up once."""
    return functools.cache(lambda engine: _described(models, {**ENGINES[engine][0], "backend": engine}))


def _described(folder: Path, keys: Mapping[str, Any]) -> Any:
    """What is known of a model, and how it runs; None where an entry or a file is refused."""
    try:
        project = Project(folder, folder / "lmgate.yaml", ProjectSpec(models={"m": ModelSpec(**keys)}))
        engines = {Dice.name: Dice()}
        model = Evaluator(project, Options(cache=folder / "cache"), users_backends=engines).resolver.model("m")
        named = {key: value for key, value in {**model.ingredients, **model.writing()}.items() if key != "session"}
        return named, model.context, model.device, model.batch_size, model.chat_template_kwargs
    except LmgateError:
        return None


def test_every_key_of_a_model_and_every_engine_is_tried() -> None:
    assert MODEL_KEYS.keys() | {"backend"} == {field.name for field in msgspec.structs.fields(ModelSpec)}
    assert ENGINES.keys() == BACKENDS.keys()


@pytest.mark.parametrize(
    ("engine", "key"),
    [
        (engine, key)
        for engine, (_, refused) in ENGINES.items()
        for key in (sorted(refused) if engine in ("onnx", "llama.cpp") else MODEL_KEYS)
    ],
)
def test_no_key_of_a_model_is_accepted_and_unused(
    models: Path, described: Callable[[str], Any], engine: str, key: str
) -> None:
    plain, refused = ENGINES[engine]
    if key == "pickle_weights" and key not in refused:
        plain = {**plain, "path": "pickled"}
        assert _described(models, plain) is None
    after = _described(models, {**plain, key: MODEL_KEYS[key], "backend": engine})
    # The variable that `key` names is looked up, and is not set.
    assert (after is None) == (key in refused or key == "key")
    if key == "requires":  # it decides whether a gate is run
        return
    assert after is None or after != described(engine)


@pytest.mark.parametrize("engine", ["transformers", "vllm", "server", "command"])
def test_options_of_a_tokenizer_are_part_of_a_model(models: Path, engine: str) -> None:
    described = []
    for options in ({}, {"legacy": True}, {"legacy": False}):
        keys = {**ENGINES[engine][0], "tokenizer": {"path": "counter", **options}, "backend": engine}
        described.append(_described(models, keys))
    assert None not in described
    assert described[0] != described[1] != described[2] != described[0]


CHECKPOINT = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
# Files of a model by which its numbers or texts may change. Tests of engines that need a library are in their folders.
FILES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "transformers": (ENGINES["transformers"][0], CHECKPOINT),
    "vllm": (ENGINES["vllm"][0], CHECKPOINT),
    "server": (ENGINES["server"][0], ("tokenizer.json", "tokenizer_config.json")),
    "command": (
        {**ENGINES["command"][0], "content": ["counter/config.json"]},
        ("tokenizer.json", "tokenizer_config.json", "config.json"),
    ),
    Dice.name: ({"path": "counter/six.die"}, ("six.die",)),
}


def test_files_of_every_engine_are_tried() -> None:
    assert FILES.keys() == BACKENDS.keys() - {"onnx", "llama.cpp"} | {Dice.name}


@pytest.mark.parametrize(("engine", "file"), [(engine, file) for engine, (_, files) in FILES.items() for file in files])
def test_a_model_with_another_file_is_another_model(models: Path, tmp_path: Path, engine: str, file: str) -> None:
    shutil.copytree(models / "counter", tmp_path / "counter")
    before = _described(tmp_path, FILES[engine][0])
    changed = tmp_path / "counter" / file
    if changed.suffix == ".safetensors":
        changed.write_bytes(changed.read_bytes()[:-1] + b"\x01")
    else:
        changed.write_text(changed.read_text() + "\n")
    after = _described(tmp_path, FILES[engine][0])
    assert None not in (before, after)
    assert after != before


SAMPLING = {"seed": 1, "temperature": 0.5}
# A gate of each kind of measurement: its fixture, models, the keys of its dataset, and its arguments.
GATES: dict[str, tuple[str, tuple[str, ...], dict[str, Any], dict[str, Any]]] = {
    **{
        protocol: ("ppl_of", ("counter",), {"path": "long.jsonl"}, {"protocol": protocol, "max_length": 6})
        for protocol in PROTOCOL_RULES
    },
    "divergence": ("kl_of", ("counter", "even"), {"path": "long.jsonl"}, {}),
    "sampled": (*USES["divergence"], {"estimator": "sampled"}),
    "self": ("self_kl_of", ("counter",), {"path": "rows.jsonl"}, {"max_new_tokens": 2}),
    "masked": (*USES["masked"], {"max_length": 6}),
    "texts": (*USES["texts"], {"max_new_tokens": 2}),
    "function": ("exact_of", (), {"path": "rows.jsonl", **WRITES}, {"model": list}),
    "choices": (*USES["choices"], {"max_length": 6}),
    "targets": ("accuracy_of", ("counter",), {"path": "rows.jsonl", "question": "text", "target": "own"}, {}),
    "pairs": (*USES["pairs"], {}),
}
# Every field of the requests with another value than its default, and than those above.
ARGUMENTS: dict[str, Any] = {
    "protocol": "lm-eval", "max_length": 5, "stride": 2, "unit": "byte", "average": "window",
    "allow_beyond_context": True, "add_bos_token": True, "statistic": "median", "estimator": "sampled",
    "reference": "backward", "variant": "acc_norm", "max_new_tokens": 3, "num_beams": 2, "stop": ["six"], "seed": 2,
    "temperature": 0.7, "top_p": 0.6, "top_k": 3, "truncate": "left", "repeats": 2,
}  # fmt: skip
# The value where a gate above has that one.
OTHERWISE = {("lm-eval", "protocol"): "document", ("gptq", "average"): "token", ("sampled", "estimator"): "exact"}
# What an argument cannot do without.
NEEDS: dict[str, dict[str, Any]] = {
    **dict.fromkeys((*SAMPLED, "repeats"), SAMPLING),
    "allow_beyond_context": {"max_length": CONTEXT + 1},
}
# Another number of the same measurement.
VIEWS = {"unit", "average", "statistic", "variant"}
# Arguments that a gate's record has, and that are an error there.
REFUSED: dict[str, set[str]] = {
    "disjoint": {"stride", "add_bos_token"},
    "sliding": {"add_bos_token"},
    **{each: {"stride", "average", "add_bos_token"} for each in ("bos-chunks", "llama.cpp")},
    "gptq": {"stride", "unit", "average", "add_bos_token"},
    "lm-eval": {"stride", "average"},
    "document": {"add_bos_token"},
    "divergence": {"max_new_tokens", "add_bos_token"},
    "sampled": {"protocol", "max_length", "stride", "allow_beyond_context", "add_bos_token", "statistic"},
    "function": set(GenerationRequest.__struct_fields__),
    "targets": {"variant"},
    "pairs": {"protocol", "max_length", "stride", "average", "allow_beyond_context", "add_bos_token"},
}


def _arguments(fixture: str) -> list[str]:
    """Name the arguments of a fixture that say how it measures."""
    row = FIXTURES[fixture]
    fields = [field.encode_name for field, _ in flat_fields(REQUESTS[row.measures])]
    return [each for each in fields if each not in TEXTS and each not in dict(row.fixed)]


def _scored(session: Evaluator, gate: str, arguments: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return the measurement's address, the score's signature and the gate's label; None for an error."""
    fixture, models, keys, plain = GATES[gate]
    named = dict(zip(("model", "reference"), models, strict=False))
    try:
        evaluator = _with_dataset(session, keys)
        asked = parse_fixture_call(fixture, (), {**named, "dataset": "d", **plain, **arguments})
        score = evaluator.evaluate(asked)
    except LmgateError:
        return None
    limited = LimitGate(marker=FIXTURES[fixture].markers[0], evaluation=asked, limit=1.0)
    return score.fingerprint, str(score.signature), limited.label


def test_every_argument_and_every_record_is_tried() -> None:
    assert {FIXTURES[fixture].measures for fixture, *_ in GATES.values()} == REQUESTS.keys()
    fields = {field.encode_name for record in REQUESTS.values() for field, _ in flat_fields(record)}
    assert fields == ARGUMENTS.keys() | set(TEXTS)


@pytest.mark.parametrize(("gate", "argument"), [(gate, each) for gate in GATES for each in _arguments(GATES[gate][0])])
def test_no_argument_of_a_gate_is_accepted_and_unused(session: Evaluator, gate: str, argument: str) -> None:
    needed = {} if gate == "function" else NEEDS.get(argument, {})
    value = OTHERWISE.get((gate, argument), ARGUMENTS[argument])
    before, after = _scored(session, gate, needed), _scored(session, gate, {**needed, argument: value})
    if argument == "allow_beyond_context":
        assert before is None
        assert (after is None) == (argument in REFUSED.get(gate, ()))
        return
    assert before is not None
    assert (after is None) == (argument in REFUSED.get(gate, ()))
    if after is not None:
        assert (after[0] == before[0]) == (argument in VIEWS)
        assert (after[1] == before[1]) == (argument == "reference")  # the score names it elsewhere
        assert after[2] != before[2]
