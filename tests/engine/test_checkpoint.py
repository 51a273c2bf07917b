"""What a checkpoint's files say of it before anything is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

from pytest_lmgate.backends.base import Kind, Model, Runner
from pytest_lmgate.backends.hf.models.checkpoint import (
    Architecture,
    open_checkpoint,
    require_own_code,
    require_tokenizer,
)
from pytest_lmgate.errors import ModelError
from pytest_lmgate.evaluate.measurements.measurement import require
from tests.models.zoo import ARCHITECTURES, CONTEXT

WITHOUT_LIMIT = {"bloom", "falcon", "jamba", "mamba", "mamba2", "recurrent_gemma"}


@pytest.mark.parametrize("name", sorted(set(ARCHITECTURES) - WITHOUT_LIMIT))
def test_the_context_is_what_the_librarys_own_config_says(name: str) -> None:
    config = transformers.AutoConfig.for_model(name, **ARCHITECTURES[name])

    assert Architecture(name, json.loads(config.to_json_string(use_diff=False))).context == CONTEXT


@pytest.mark.parametrize("name", ["bloom", "mamba", "mamba2"])
def test_a_model_without_a_limit_has_no_context(name: str) -> None:
    config = transformers.AutoConfig.for_model(name, **ARCHITECTURES[name])

    assert Architecture(name, config.to_dict()).context is None


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({}, None),
        ({"max_position_embeddings": 2048}, 2048),
        ({"n_ctx": 512, "n_positions": 1024}, 1024),
        ({"max_position_embeddings": -1, "max_seq_len": 128}, 128),
        ({"max_position_embeddings": 1e30}, None),
        ({"max_position_embeddings": True}, None),
        ({"max_position_embeddings": "many"}, None),
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


def test_an_opened_checkpoint_knows_its_config(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", "model.safetensors", config={"architectures": ["XForCausalLM"], "n_ctx": 9})

    checkpoint = open_checkpoint(folder, name="m")

    assert (checkpoint.name, checkpoint.architecture, checkpoint.context) == ("m", "XForCausalLM", 9)
    assert not checkpoint.is_quantized
    assert checkpoint.weight_bytes == 10


def test_a_quantized_checkpoint_is_told_by_its_config(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", config={"quantization_config": {"quant_method": "gptq"}})

    assert open_checkpoint(folder, name="m").is_quantized


def test_what_is_no_checkpoint_is_an_error_that_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^model 'm': no such folder: .*absent"):
        open_checkpoint(tmp_path / "absent", name="m")
    with pytest.raises(
        ModelError, match=r"^model 'm': no config\.json in .*: expected a folder made by save_pretrained"
    ):
        open_checkpoint(tmp_path, name="m")
    for text, message in (("{", "not JSON: "), ("[1]", "expected a JSON object, got list"), ("\xff", "not JSON: ")):
        (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(ModelError, match=rf"^model 'm': .*config\.json: {message}"):
            open_checkpoint(tmp_path, name="m")


@pytest.mark.parametrize(
    ("files", "allowed"),
    [
        (["model.safetensors"], False),
        (["model.safetensors", "pytorch_model.bin"], False),
        (["weights.gguf"], False),
        (["pytorch_model.bin"], True),
    ],
)
def test_weights_that_run_no_code_or_are_trusted_pass(tmp_path: Path, files: list[str], allowed: bool) -> None:
    open_checkpoint(write(tmp_path / "m", *files), name="m").require_safe_weights(pickle_weights=allowed)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"])
def test_pickled_weights_are_refused_unless_the_file_says_so(tmp_path: Path, file: str) -> None:
    with pytest.raises(
        ModelError, match=rf"only as pickle \({file}\), .* or set pickle_weights: true if you trust them$"
    ):
        open_checkpoint(write(tmp_path / "m", file), name="m").require_safe_weights(pickle_weights=False)


@pytest.mark.parametrize("pickle_weights", [False, True])
def test_no_weights_at_all_are_an_error(tmp_path: Path, pickle_weights: bool) -> None:
    with pytest.raises(ModelError, match=r"^model 'm': no weights in .*: expected \*\.safetensors$"):
        open_checkpoint(write(tmp_path / "m"), name="m").require_safe_weights(pickle_weights=pickle_weights)


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"^model 'm': no tokenizer in .*: expected tokenizer\.json or tokenizer\.model"
    ):
        require_tokenizer(write(tmp_path / "m"), name="m")

    require_tokenizer(write(tmp_path / "m", "tokenizer.model"), name="m")


def test_reading_what_a_checkpoint_says_imports_no_torch(tmp_path: Path) -> None:
    write(tmp_path / "m", "model.safetensors")
    code = (
        "import sys; from pathlib import Path\n"
        "from pytest_lmgate.backends.hf.models.checkpoint import open_checkpoint\n"
        "from pytest_lmgate.backends.hf.models.device import resolve_device\n"
        "open_checkpoint(Path('m'), name='m').files, resolve_device('auto')\n"
        "print({'datasets', 'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "causal"),
        ({"architectures": ["BertForMaskedLM"]}, "masked"),
        ({"architectures": ["BertForPreTraining"]}, "masked"),
        ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "encoder-decoder"),
    ],
)
def test_a_metric_is_refused_for_the_kinds_of_model_that_it_is_undefined_for(
    config: dict[str, Any], kind: Kind
) -> None:
    architecture = Architecture("m", config)
    model = Model("m", Runner, kind=architecture.kind, architecture=architecture.architecture)

    require(model, "ppl", "score", kind)
    with pytest.raises(
        ModelError, match=rf"^ppl is undefined for the {kind} model 'm' \(architecture .*\): expected a other model"
    ):
        require(model, "ppl", "score", "other")  # type: ignore[arg-type]


@pytest.mark.parametrize("config", [{}, {"architectures": None}, {"architectures": []}])
def test_a_model_whose_config_does_not_say_its_kind_is_refused_as_that(config: dict[str, Any]) -> None:
    architecture = Architecture("m", config)
    model = Model("m", Runner, kind=architecture.kind, architecture=architecture.architecture)
    require(model, "ppl", "score", "causal")
    with pytest.raises(ModelError) as raised:
        require(model, "pppl", "score", "masked")
    assert str(raised.value) == (
        "pppl is undefined for 'm', taken for a causal model since its config lacks architectures: expected a masked "
        'model; if it is, add its class to config.json, as in "architectures": ["BertForMaskedLM"]'
    )


@pytest.mark.parametrize("beside", [None, "{", "[]", '{"auto_map": null}'])
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
