"""A model beside its reference: what is measured anew, what is found, and what is refused."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.errors import ModelError
from pytest_lmgate.measure import divergence, loop
from pytest_lmgate.measure import lookup as pool
from pytest_lmgate.metrics.score import Score
from tests.measure.conftest import TEXT, make_model, make_tokenizer
from tests.measure.entries import entry


def kl(session: Any, model: Any = "other", reference: Any = "float", dataset: Any = "text") -> Score:
    score: Score = session.score("kl_of", model, reference, dataset, max_length=16, stride=8)
    return score


def test_other_weights_are_measured_anew_and_another_size_of_batches_is_not(pair: Any) -> None:
    first = kl(pair.session())
    entry(pair, "other", section="models", batch_size=1)
    assert kl(pair.session()).cached
    assert kl(pair.session(), "float", "other").fingerprint != first.fingerprint
    weights = pair.folder / "models" / "float" / "model.safetensors"
    shutil.copy(pair.folder / "models" / "other" / "model.safetensors", weights)
    changed = kl(pair.session())
    assert (changed.cached, float(changed)) == (False, 0.0)


@pytest.mark.parametrize("free", [0, 2**40])
def test_models_take_turns_only_where_they_do_not_fit_together(
    pair: Any, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    plain, ways = divergence.compare, []

    def watched(models: Any, *args: Any, **options: Any) -> Any:
        ways.append(models.side_by_side)
        return plain(models, *args, **options)

    expected = kl(pair.session(cache=pair.folder / "elsewhere"))
    monkeypatch.setattr(divergence, "compare", watched)
    monkeypatch.setattr(pool, "available_bytes", lambda _: free)
    found = kl(pair.session())
    assert float(found) == pytest.approx(float(expected), rel=1e-9)
    assert ways == [free > 0]

    def kept(cache: Path) -> set[str]:
        # A file's digest is only remembered once the file is two seconds old, and models in turn are proved one by one.
        files = {str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file()}
        return {name for name in files if not name.startswith(("digests", "proofs"))}

    assert kept(pair.folder / ".lmgate_cache") == kept(pair.folder / "elsewhere"), "a spool is left in the cache"


def test_an_interrupted_comparison_goes_on_where_it_was(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = kl(pair.session(cache=pair.folder / "elsewhere"))
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    entry(pair, "other", section="models", batch_size=1)
    session = pair.session()
    session.interrupt_after = 4
    with pytest.raises(KeyboardInterrupt):
        kl(session)
    again = pair.session()
    score = kl(again)
    assert float(score) == pytest.approx(float(expected), rel=1e-6)
    assert again.progress[0].resumed > 0


def test_a_larger_vocabulary_is_refused(pair: Any) -> None:
    folder = pair.folder / "models" / "other"
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["@"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(ModelError, match=r"tokenizers that differ \(32 tokens against 31\)"):
        kl(pair.session())


def test_tokenizers_that_list_no_tokens_are_compared_by_the_text(pair: Any) -> None:
    class Letters:
        """A tokenizer of the user's own, with some ids moved on."""

        def __init__(self, moved: int = 0) -> None:
            self.moved = moved

        def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
            return {"input_ids": [(ord(letter) + self.moved) % 20 for letter in text]}

    text = [TEXT]
    models = make_model(seed=1), make_model()
    assert kl(pair.session(), (models[0], Letters()), (models[1], Letters()), text) > 0
    with pytest.raises(ModelError, match=r"they tokenize the text of 'in-memory list' differently"):
        kl(pair.session(), (models[0], Letters()), (models[1], Letters(moved=1)), text)
