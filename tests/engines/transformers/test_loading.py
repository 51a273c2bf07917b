"""From a folder to a model and its tokenizer, whole and in silence; and what is said where that cannot be."""

import json
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

from pytest_lmgate.engines.tokenizers import decoded, tokenizer_facts
from pytest_lmgate.engines.transformers.loading import wrap_pair
from pytest_lmgate.errors import ModelError
from tests.engines.transformers.measuring import load
from tests.models.encoders import framed_tokenizer
from tests.models.zoo import VOCABULARY, build, lora, word_tokenizer, words


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama in bfloat16 with a word tokenizer; not to be changed."""
    folder = tmp_path_factory.mktemp("saved") / "llama"
    build("llama", dtype=torch.bfloat16).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(saved, tmp_path / "llama"))


def test_a_checkpoint_is_loaded_as_it_was_saved(saved: Path) -> None:
    found = load(saved)

    assert (found.name, found.device, found.vocabulary_size) == ("llama", torch.device("cpu"), VOCABULARY)
    assert not found.model.training
    original = build("llama", dtype=torch.bfloat16).state_dict()
    assert found.model.state_dict().keys() == original.keys()
    assert all(torch.equal(tensor, original[name]) for name, tensor in found.model.state_dict().items())
    assert found.tokenizer(words()[5])["input_ids"] == [9]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("auto", torch.bfloat16), ("float32", torch.float32), ("float16", torch.float16), ("float64", torch.float64)],
)
def test_the_dtype_is_the_checkpoints_own_or_the_one_asked_for(saved: Path, dtype: str, expected: torch.dtype) -> None:
    assert load(saved, dtype=dtype).model.dtype == expected


def test_load_options_reach_the_library(saved: Path) -> None:
    assert load(saved, load={"attn_implementation": "eager"}).model.config._attn_implementation == "eager"
    assert load(saved, load={"device_map": "cpu"}).device == torch.device("cpu")


WEIGHT = "model.layers.1.mlp.up_proj.weight"


def _with_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    change(weights)
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _with_a_weight_of_another_shape(folder: Path) -> None:
    _with_weights(folder, lambda weights: weights.update({WEIGHT: torch.zeros(3, 3)}))


def _with_config(folder: Path, **changed: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changed))


def _with_code_of_its_own(folder: Path) -> None:
    own = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.OwnModel"}
    _with_config(folder, model_type="own", auto_map=own)
    (folder / "own.py").write_text("raise SystemExit('code of a stranger was run')")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda folder: _with_weights(folder, lambda weights: weights.pop(WEIGHT)),
            f"lacks weights that LlamaForCausalLM needs: {WEIGHT}; save the whole",
        ),
        (
            _with_a_weight_of_another_shape,
            r"llama do not have the shapes of its config\.json: "
            rf"{WEIGHT} \[\d+, \d+\] instead of \[\d+, \d+\]; put config\.json",
        ),
        (
            lambda folder: (folder / "tokenizer.json").write_text("{"),
            r"no usable tokenizer in .*llama: .*; save one there with tokenizer.save_pretrained",
        ),
        (_with_code_of_its_own, "contains custom code|trust_remote_code"),
    ],
)
def test_a_damaged_checkpoint_is_an_error_that_names_it(
    copied: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(copied)

    with pytest.raises(ModelError, match=rf"(?s)^model 'llama': .*{message}"):
        load(copied)


def test_a_weight_of_another_shape_is_never_drawn_at_random(copied: Path) -> None:
    _with_a_weight_of_another_shape(copied)

    with pytest.raises(ModelError, match=f"lacks weights that LlamaForCausalLM needs: {WEIGHT}"):
        load(copied, load={"ignore_mismatched_sizes": True})


def test_pickled_weights_are_read_only_where_allowed(copied: Path) -> None:
    weights = safetensors.torch.load_file(copied / "model.safetensors")
    (copied / "model.safetensors").unlink()
    torch.save(weights, copied / "pytorch_model.bin")

    assert torch.equal(load(copied, pickle_weights=True).model.lm_head.weight, weights["lm_head.weight"])
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(copied)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    lora(build("llama"), "q_proj").save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_an_adapter_is_put_on_the_model(saved: Path, adapter: Path) -> None:
    ids = torch.arange(10)[None]

    plain, adapted = load(saved, dtype="float32"), load(saved, dtype="float32", adapter_folder=adapter)

    assert (plain.model(input_ids=ids).logits - adapted.model(input_ids=ids).logits).abs().max() > 0.1
    assert not adapted.model.training
    assert adapted.vocabulary_size == VOCABULARY


def test_an_adapter_that_cannot_be_read_is_an_error(saved: Path, adapter: Path) -> None:
    (adapter / "adapter_model.safetensors").write_bytes(b"no such thing")

    with pytest.raises(ModelError, match=r"^model 'llama': adapter .*adapter cannot be loaded: "):
        load(saved, adapter_folder=adapter)


def test_without_peft_an_adapter_says_how_to_install_it(
    saved: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)

    with pytest.raises(ModelError, match=r"^model 'llama': an adapter needs PEFT: pip install "):
        load(saved, adapter_folder=adapter)


# Pairs.


def test_a_pair_is_taken_as_it_is() -> None:
    model, tokenizer = build("llama").train(), word_tokenizer()

    pair = wrap_pair((model, tokenizer), name="pair")

    assert (pair.name, pair.model, pair.tokenizer) == ("pair", model, tokenizer)
    assert pair.model.training


def test_a_model_without_parameters_or_embeddings_is_on_the_processor() -> None:
    pair = wrap_pair((torch.nn.Identity(), word_tokenizer()), name="pair")

    assert pair.device == torch.device("cpu")
    assert pair.vocabulary_size is None


@pytest.mark.parametrize(
    ("pair", "came"),
    [(("model", word_tokenizer()), r"\(str, ...\)"), ((torch.nn.Identity(), "tokenizer"), r"\(..., str\)")],
)
def test_anything_else_is_no_pair(pair: tuple[Any, Any], came: str) -> None:
    with pytest.raises(ModelError, match=rf"^model 'pair': expected \(model, tokenizer\), got {came}$"):
        wrap_pair(pair, name="pair")


# Tokenizers.


@pytest.mark.parametrize("tokenizer", [lambda text: {"input_ids": [1]}, lambda text, add_special_tokens: [1]])
def test_a_tokenizer_that_is_called_otherwise_is_an_error_that_says_how_it_should_be(tokenizer: Any) -> None:
    with pytest.raises(ModelError, match=r"^the tokenizer function failed: TypeError: "):
        tokenizer_facts(tokenizer).encode("text", False)


def test_a_tokenizer_that_cannot_decode_is_an_error_that_says_how_it_should_be() -> None:
    class Encoding:
        def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
            return {"input_ids": [1]}

    with pytest.raises(ModelError, match=r"expected one that returns a token's text by tokenizer\.decode\(id\)$"):
        tokenizer_facts(Encoding()).decode(1)


def test_a_tokenizer_that_does_not_place_all_its_tokens_places_none() -> None:
    class Partly(Encoded):
        starts = 1

    whole = tokenizer_facts(Encoded()).placed("a b", False)
    assert (list(whole.ids), list(whole.begins), list(whole.ends)) == ([97, 98], [0, 2], [1, 3])
    assert tokenizer_facts(Partly()).placed("a b", False) is None


class Encoded:
    """A fast tokenizer of the user's own: each letter is a token."""

    is_fast, starts = True, 2

    def __call__(self, text: str, **_: Any) -> Any:
        letters = [at for at, letter in enumerate(text) if letter != " "]
        return {
            "input_ids": [ord(text[at]) for at in letters],
            "offset_mapping": [(at, at + 1) for at in letters[: self.starts]],
        }


def test_ids_are_decoded_with_or_without_special_tokens() -> None:
    tokenizer = framed_tokenizer(mask=False)
    ids = tokenizer("the cat").input_ids
    assert (
        decoded(tokenizer, ids, skip_special=False)
        != decoded(tokenizer, ids)
        == tokenizer.decode(ids, skip_special_tokens=True)
    )


def test_loading_says_nothing_and_leaves_the_library_as_talkative_as_it_was(
    saved: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logging = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_info()
    logging.enable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = load(saved)
            tokenizer_facts(found.tokenizer).encode("w1 " * 5000, True)
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity(verbosity)
        if not bars:
            logging.disable_progress_bar()

    assert capfd.readouterr() == ("", "")
