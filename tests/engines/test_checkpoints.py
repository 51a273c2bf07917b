"""What a checkpoint's files say of it before anything is loaded."""

import contextlib
import json
import re
import socket
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import safetensors.numpy
import transformers

from pytest_lmgate.engines.base import LoadOption, Model, ModelEntry, Runner
from pytest_lmgate.engines.checkpoints import (
    Architecture,
    Checkpoint,
    Contents,
    TokenizerFolder,
    contents_of,
    fetch_checkpoint,
    open_checkpoint,
    require_own_code,
    require_tokenizer,
)
from pytest_lmgate.errors import ConfigError, ModelError, OfflineError
from pytest_lmgate.measure.measurement import require
from pytest_lmgate.settings.entries import ModelSpec
from tests.models.zoo import ARCHITECTURES, CONTEXT

PICKLED = ("pytorch_model.bin", "model.pt", "model.pth", "model.ckpt")
WITHOUT_LIMIT = {"bloom", "falcon", "jamba", "mamba", "mamba2", "recurrent_gemma"}


@pytest.mark.torch
@pytest.mark.parametrize("name", sorted(set(ARCHITECTURES) - WITHOUT_LIMIT))
def test_the_context_is_what_the_librarys_own_config_says(name: str) -> None:
    config = transformers.AutoConfig.for_model(name, **ARCHITECTURES[name])

    assert Architecture(name, json.loads(config.to_json_string(use_diff=False))).context == CONTEXT


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({}, None),
        ({"n_ctx": 512, "n_positions": 1024}, 1024),
        ({"max_position_embeddings": -1, "max_seq_len": 128}, 128),
        ({"max_position_embeddings": 1e30}, None),
        ({"max_position_embeddings": True}, None),
        ({"text_config": {"max_position_embeddings": 77}}, 77),
        ({"max_position_embeddings": 5, "text_config": {"max_position_embeddings": 77}}, 5),
        ({"text_config": None, "llm_config": {"max_position_embeddings": 88}}, 88),
    ],
)
def test_the_context_is_found_under_each_of_its_names(config: dict[str, Any], context: int | None) -> None:
    assert Architecture("m", config).context == context


def write(folder: Path, *files: str, config: object = None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or {"architectures": ["LlamaForCausalLM"]}))
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(b"0123456789")
    return folder


def test_a_checkpoint_knows_whether_it_is_quantized_and_how_large_its_weights_are(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write(tmp_path / "m", "model.safetensors"), name="m")
    assert (checkpoint.is_quantized, checkpoint.weight_bytes) == (False, 10)
    assert open_checkpoint(write(tmp_path / "q", config={"quantization_config": {}}), name="q").is_quantized


def test_a_config_that_is_no_json_object_is_an_error(tmp_path: Path) -> None:
    for text, message in (("{", "not JSON: "), ("[1]", "expected a JSON object, got list"), ("\xff", "not JSON: ")):
        (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(ModelError, match=rf"^model 'm': .*config\.json: {message}"):
            open_checkpoint(tmp_path, name="m")


@pytest.mark.parametrize(
    ("file", "allowed", "says"),
    [
        ("model.safetensors", False, ""),
        ("weights.gguf", False, ""),
        ("pytorch_model.bin", True, ""),
        *((file, False, rf"only as pickle \({file}\), .* set pickle_weights: true") for file in PICKLED),
        ("README.md", True, r"^model 'm': no weights in .*: expected \*\.safetensors$"),
    ],
)
def test_weights_that_run_code_pass_only_where_they_are_trusted(
    tmp_path: Path, file: str, allowed: bool, says: str
) -> None:
    checkpoint = open_checkpoint(write(tmp_path / "m", file), name="m")
    with pytest.raises(ModelError, match=says) if says else contextlib.nullcontext():
        checkpoint.require_safe_weights(pickle_weights=allowed)


# Files of weights: by file a list of the tensors in its header, or the content of an index.

SHARD, OTHER_SHARD = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = {"a": SHARD, "b": OTHER_SHARD}


def with_weights(folder: Path, files: dict[str, Any]) -> Checkpoint:
    write(folder)
    for name, held in files.items():
        if isinstance(held, dict):
            (folder / name).write_text(json.dumps({"weight_map": held}))
        elif held is not None:
            safetensors.numpy.save_file({each: np.ones(2, np.float32) for each in held}, folder / name)
    return open_checkpoint(folder, name="m")


SHARDED: dict[str, Any] = {SHARD: ["a"], OTHER_SHARD: ["b"], "model.safetensors.index.json": INDEX}
ONE, TWO_SETS = "model.safetensors", "holds two sets of weights, "
PICKLED_SHARD = "pytorch_model-00001-of-00001.bin"


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (SHARDED | {ONE: ["a", "b"]}, f"{TWO_SETS}{ONE} and "),
        (SHARDED | {"model-00003-of-00003.safetensors": ["c"]}, f"{TWO_SETS}model-00003-of-00003.safetensors and "),
        (SHARDED | {"older.safetensors": ["b"]}, f"{TWO_SETS}older.safetensors and "),
        (SHARDED | {OTHER_SHARD: None}, f"names {OTHER_SHARD}, which is not there"),
        (SHARDED | {OTHER_SHARD: ["b", "c"]}, "disagree about 1 tensors, such as c, which is in the file"),
        (SHARDED | {OTHER_SHARD: ["c"]}, "disagree about 2 tensors, such as b, which is not in the file"),
        ({ONE: ["a", "b"], "older.safetensors": ["b", "c"]}, f"{TWO_SETS}older.safetensors and what {ONE} has"),
        (
            {"pytorch_model.bin": ["a"], PICKLED_SHARD: ["a"], "pytorch_model.bin.index.json": {"a": PICKLED_SHARD}},
            f"{TWO_SETS}pytorch_model.bin and ",
        ),
        ({"pytorch_model.bin": ["a"], PICKLED_SHARD: ["a"]}, f"{TWO_SETS}{PICKLED_SHARD} and "),
        (SHARDED, ""),
        # Mistral's own format, a variant, an adapter, a part with tensors of its own, an index of a single file.
        (SHARDED | {"consolidated.safetensors": ["a"], "model.fp16.safetensors": ["a"]}, ""),
        ({ONE: ["a"], "consolidated-00001-of-00002.safetensors": ["a"], "mtp.safetensors": ["c"]}, ""),
        ({ONE: ["a"], f"{ONE}.index.json": {"a": ONE}}, ""),
        ({"pytorch_model.bin": ["a"], **SHARDED}, ""),  # every engine reads safetensors
        ({"weights.safetensors": ["a"]}, ""),  # of which config.json or an option gives the name
    ],
)
def test_weights_and_an_index_that_contradict_each_other_are_an_error(
    tmp_path: Path, files: dict[str, Any], says: str
) -> None:
    checkpoint = with_weights(tmp_path / "m", files)
    with pytest.raises(ModelError, match=f"^model 'm': .*{re.escape(says)}") if says else contextlib.nullcontext():
        checkpoint.require_safe_weights(pickle_weights=True)
    assert says or checkpoint.tensors.keys() <= {"a", "b"}


def test_a_damaged_index_is_an_error_and_a_damaged_header_is_left_to_the_loader(tmp_path: Path) -> None:
    checkpoint = with_weights(tmp_path / "m", SHARDED)
    (tmp_path / "m" / OTHER_SHARD).write_bytes(b"\xff" * 20)
    checkpoint.require_safe_weights(pickle_weights=False)
    (tmp_path / "m" / "model.safetensors.index.json").write_text('{"weight_map": []}')
    with pytest.raises(ModelError, match=r"index\.json: expected the JSON of an index with a weight_map"):
        checkpoint.require_safe_weights(pickle_weights=False)


def test_the_tokenizer_of_sentencepiece_is_one_too(tmp_path: Path) -> None:
    require_tokenizer(write(tmp_path / "m", "tokenizer.model"), name="m")


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "causal"),
        ({"architectures": ["BertForMaskedLM"]}, "masked"),
        ({"architectures": ["BertForPreTraining"]}, "masked"),
        ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "encoder-decoder"),
    ],
)
def test_the_kind_of_a_model_is_told_by_its_config(config: dict[str, Any], kind: str) -> None:
    assert Architecture("m", config).kind == kind


@pytest.mark.parametrize("config", [{}, {"architectures": None}, {"architectures": []}])
def test_a_model_whose_config_does_not_say_its_kind_is_refused_as_that(config: dict[str, Any]) -> None:
    architecture = Architecture("m", config)
    model = Model("m", Runner, kind=architecture.kind, architecture=architecture.architecture)
    require(model, "ppl", "score", "causal")
    with pytest.raises(ModelError, match=r"undefined for 'm', assumed to be causal because .* no architectures"):
        require(model, "pppl", "score", "masked")


@pytest.mark.parametrize("beside", [None, "{", "[]"])
@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_of_another_repository_is_found_whatever_the_other_config_is(
    tmp_path: Path, file: str, beside: str | None
) -> None:
    (other,) = {"config.json", "tokenizer_config.json"} - {file}
    if beside is not None:
        (tmp_path / other).write_text(beside)
    (tmp_path / file).write_text('{"auto_map": {"AutoModel": "modeling.Own"}}')
    require_own_code(tmp_path, name="m")
    (tmp_path / file).write_text('{"auto_map": {"AutoTokenizer": ["org/repo--tokens.Slow", null]}}')
    with pytest.raises(ModelError, match=rf"^model 'm': .*{file} takes its code from another repository, org/repo, "):
        require_own_code(tmp_path, name="m")


# A checkpoint is known by each file that its entry or its own code may open.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model" / "inner").mkdir(parents=True)
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


def entry(workers: int = 1, **spec: Any) -> ModelEntry:
    read: dict[str, Any] = {"path": Path, "hub_id": lambda _: None, "digest": lambda path: path.read_text()}
    return ModelEntry(name="m", spec=ModelSpec(path="m", **spec), workers=workers, **read)


def contents(folder: Path, **spec: Any) -> Contents:
    tokenizer = TokenizerFolder("m", folder, {}, spec.get("trust_remote_code", False))
    return contents_of(entry(**spec), model=folder, tokenizer=tokenizer)


@pytest.mark.parametrize("absolute", [False, True])
def test_a_file_that_an_option_names_is_part_of_a_model(folder: Path, absolute: bool) -> None:
    weights = folder / "inner" / "weights.gguf"
    weights.write_text("first")
    named = str(weights) if absolute else "inner/weights.gguf"

    before = contents(folder, load={"gguf_file": named, "device_map": "cpu"})
    weights.write_text("second")

    assert before.ingredients[f"load/{named}"] == "first"
    assert before.changed() == [str(weights)]
    assert contents(folder, load={"gguf_file": named}).ingredients[f"load/{named}"] == "second"
    assert f"load/{named}" not in contents(folder).ingredients


def test_options_of_a_tokenizer_and_files_that_they_name_are_part_of_a_model(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    (folder / "words.txt").write_text("first")

    def ingredients(**options: Any) -> dict[str, str]:
        named = entry(tokenizer=options or None)
        return contents_of(named, model=folder, tokenizer=TokenizerFolder.of(named, folder)).ingredients

    assert ingredients(legacy=True) != ingredients(legacy=False)
    assert ingredients(vocab_file="words.txt")["tokenizer.words.txt"] == "first"


def test_options_of_a_tokenizer_without_a_folder_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"^models\.m\.tokenizer: expected path:"):
        TokenizerFolder.of(entry(tokenizer={"legacy": True}))


def test_a_checkpoint_that_runs_code_of_its_own_is_not_kept(folder: Path) -> None:
    assert contents(folder, trust_remote_code=True).unknown == ""
    (folder / "modeling.py").write_text("import torch\n")
    assert contents(folder, trust_remote_code=True).unknown.startswith("it runs code of its own (modeling.py), ")
    assert contents(folder, trust_remote_code=True, revision="2").unknown == ""
    assert contents(folder).unknown == ""


@pytest.mark.parametrize(
    ("load", "says"),
    [
        ({"siz": 1}, r"m\.load: e has no option 'siz' .*'size'"),
        ({"size": 0}, r"m\.load\.size: expected a whole number from 1, got 0"),
        ({"size": True}, r"m\.load\.size: expected a whole number from 1, got True"),
        ({"kind": "tow"}, r"m\.load\.kind: expected one of one, two; got 'tow'"),
    ],
)
def test_an_option_that_an_engine_does_not_have_or_that_does_not_fit_is_named(load: dict[str, Any], says: str) -> None:
    known = {"size": LoadOption(int, 1), "kind": LoadOption(str, None, ("one", "two"))}
    assert entry(load={"size": 2, "kind": "two"}).load_options("e", known) == {"size": 2, "kind": "two"}
    with pytest.raises(ConfigError, match=says):
        entry(load=load).load_options("e", known)
    with pytest.raises(ConfigError, match=r"models\.m\.load: e has no option 'x'; it has none"):
        entry(load={"x": 1}).load_options("e", {})


def test_workers_share_the_processors_unless_the_environment_says_how_many_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert entry(workers=2).threads == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert entry(workers=10_000).threads == 1
    assert entry().threads >= entry(workers=2).threads


# Hub ids without a network: what is in the local cache is used, what is not is named.


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Addresses that somebody tried to reach; none can be."""
    addresses: list[object] = []

    def refuse(*address: object, **_: object) -> None:
        addresses.append(address)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return addresses


def test_offline_a_model_that_is_not_here_is_an_error_and_nothing_is_asked_for(asked: list[object]) -> None:
    with pytest.raises(OfflineError, match=r"^model 'm': hub:no/such@v1 is not in the local hub cache"):
        fetch_checkpoint("no/such", "v1", name="m", offline=True, pickle_weights=False)

    assert asked == []


def test_a_model_that_cannot_be_fetched_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise ConnectionError("unreachable")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)

    with pytest.raises(ModelError, match=r"^model 'm': hub:no/such cannot be fetched: unreachable$"):
        fetch_checkpoint("no/such", None, name="m", offline=False, pickle_weights=False)


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """What the hub was asked for, whose snapshot is the test's own folder."""
    wanted: list[dict[str, Any]] = []

    def download(repo: str, **options: Any) -> str:
        wanted.append({"repo": repo, **options})
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return wanted


@pytest.mark.parametrize("pickle_weights", [False, True])
def test_pickled_weights_are_fetched_only_where_allowed(
    downloads: list[dict[str, Any]], tmp_path: Path, pickle_weights: bool
) -> None:
    folder = fetch_checkpoint("org/name", "abc", name="m", offline=False, pickle_weights=pickle_weights)

    (wanted,) = downloads
    assert folder == tmp_path
    assert (wanted["repo"], wanted["revision"], wanted["local_files_only"]) == ("org/name", "abc", False)
    assert ("*.bin" in wanted["ignore_patterns"]) is not pickle_weights
    assert "*.safetensors" not in wanted["ignore_patterns"]


COMMIT = "0123456789" * 4
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
SHARDS = ("model-1.safetensors", "model-2.safetensors")


@pytest.mark.parametrize(
    ("files", "only_tokenizer", "is_whole"),
    [
        (("config.json", "model.safetensors", *TOKENIZER), False, True),
        (("config.json", "model.safetensors.index.json", *SHARDS, *TOKENIZER), False, True),
        (("config.json", "model.safetensors.index.json", SHARDS[0], *TOKENIZER), False, False),
        (("config.json", *TOKENIZER), False, False),
        (("model.safetensors", *TOKENIZER), False, False),
        (("config.json", "model.safetensors"), False, False),  # as AutoModel leaves it
        (TOKENIZER, True, True),
        (("vocab.txt",), True, True),
        (("config.json", "model.safetensors"), True, False),
    ],
)
def test_a_full_commit_is_looked_up_on_the_hub_unless_all_that_is_asked_for_is_here(
    downloads: list[dict[str, Any]], tmp_path: Path, files: tuple[str, ...], only_tokenizer: bool, is_whole: bool
) -> None:
    for file in files:
        index = {"weight_map": {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[1]}}
        (tmp_path / file).write_text(json.dumps(index))

    assert fetch_checkpoint("org/name", COMMIT, name="m", offline=False, only_tokenizer=only_tokenizer) == tmp_path

    assert [each["local_files_only"] for each in downloads] == ([True] if is_whole else [True, False])
