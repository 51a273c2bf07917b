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

from pytest_lmgate.engines.tokenizers import tokenizer_facts
from pytest_lmgate.engines.transformers.loading import wrap_pair
from pytest_lmgate.errors import ModelError
from tests.engines.transformers.measuring import load
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
    found, original = load(saved), build("llama", dtype=torch.bfloat16).state_dict()
    assert (found.name, found.device, found.vocabulary_size) == ("llama", torch.device("cpu"), VOCABULARY)
    assert not found.model.training
    assert found.model.dtype == torch.bfloat16
    assert found.model.state_dict().keys() == original.keys()
    assert all(torch.equal(tensor, original[name]) for name, tensor in found.model.state_dict().items())
    assert found.tokenizer(words()[5])["input_ids"] == [9]


def test_the_dtype_and_load_options_reach_the_library(saved: Path) -> None:
    assert load(saved, dtype="float64").model.dtype == torch.float64
    assert load(saved, load={"attn_implementation": "eager"}).model.config._attn_implementation == "eager"
    assert load(saved, load={"device_map": "cpu"}).device == torch.device("cpu")


WEIGHT = "model.layers.1.mlp.up_proj.weight"


def _with_weight(folder: Path, weight: torch.Tensor | None) -> None:
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    del weights[WEIGHT]
    kept = weights if weight is None else weights | {WEIGHT: weight}
    safetensors.torch.save_file(kept, folder / "model.safetensors", {"format": "pt"})


def _with_code_of_its_own(folder: Path) -> None:
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.OwnModel"}}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | own))
    (folder / "own.py").write_text("raise SystemExit('code of a stranger was run')")


LACKS = f"lacks weights that LlamaForCausalLM needs: {WEIGHT}; save the whole"
SHAPES = rf"do not have the shapes of its config\.json: {WEIGHT} \[\d+, \d+\] instead of \[\d+, \d+\]; put config"


@pytest.mark.parametrize(
    ("damage", "options", "says"),
    [
        (lambda folder: _with_weight(folder, None), {}, LACKS),
        (lambda folder: _with_weight(folder, torch.zeros(3, 3)), {}, SHAPES),
        (lambda folder: _with_weight(folder, torch.zeros(3, 3)), {"ignore_mismatched_sizes": True}, LACKS),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), {}, "no usable tokenizer in .*; save one there"),
        (_with_code_of_its_own, {}, "contains custom code|trust_remote_code"),
    ],
    ids=["a weight is absent", "another shape", "another shape, ignored", "tokenizer", "code of its own"],
)
def test_a_damaged_checkpoint_is_an_error_and_nothing_is_drawn_at_random(
    copied: Path, damage: Callable[[Path], None], options: dict[str, Any], says: str
) -> None:
    damage(copied)
    with pytest.raises(ModelError, match=rf"(?s)^model 'llama': .*{says}"):
        load(copied, load=options)


def test_pickled_weights_are_read_only_where_allowed(copied: Path) -> None:
    weights = safetensors.torch.load_file(copied / "model.safetensors")
    (copied / "model.safetensors").unlink()
    torch.save(weights, copied / "pytorch_model.bin")
    assert torch.equal(load(copied, pickle_weights=True).model.lm_head.weight, weights["lm_head.weight"])
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(copied)


def test_an_adapter_is_put_on_the_model_or_it_is_an_error(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, adapter = torch.arange(10)[None], tmp_path / "adapter"
    lora(build("llama"), "q_proj").save_pretrained(adapter)
    plain, adapted = load(saved, dtype="float32"), load(saved, dtype="float32", adapter_folder=adapter)
    assert (plain.model(input_ids=ids).logits - adapted.model(input_ids=ids).logits).abs().max() > 0.1
    assert (adapted.model.training, adapted.vocabulary_size) == (False, VOCABULARY)
    (adapter / "adapter_model.safetensors").write_bytes(b"no such thing")
    with pytest.raises(ModelError, match=r"^model 'llama': adapter .*adapter cannot be loaded: "):
        load(saved, adapter_folder=adapter)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModelError, match=r"^model 'llama': an adapter needs PEFT: pip install "):
        load(saved, adapter_folder=adapter)


def test_a_pair_is_taken_as_it_is() -> None:
    model, tokenizer = torch.nn.Identity(), word_tokenizer()
    pair = wrap_pair((model, tokenizer), name="pair")
    assert (pair.name, pair.model, pair.tokenizer, model.training) == ("pair", model, tokenizer, True)
    assert (pair.device, pair.vocabulary_size) == (torch.device("cpu"), None)


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
    with pytest.raises(ModelError, match=r"expected one that returns a token's text by tokenizer\.decode\(id\)$"):
        tokenizer_facts(tokenizer).decode(1)


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
