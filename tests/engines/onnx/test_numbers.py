"""One float32 model through transformers and onnxruntime: the same NLL of each token, divergences of nothing, texts."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.data.corpus import Corpus
from pytest_lmgate.settings.requests import Protocol
from tests.engines.projects import text_of

pytest.importorskip("onnxruntime", reason="onnxruntime is NOT installed; make test-onnx runs these tests")

from pytest_lmgate.engines.base import COLUMNS, OutOfMemory
from pytest_lmgate.errors import ModelError, NonFiniteError
from pytest_lmgate.measure.divergence import ModelPair, compare
from pytest_lmgate.measure.loop import Job, Log
from pytest_lmgate.measure.scoring import score
from tests.engines.numbers import (
    JOB,
    PROTOCOLS,
    WAYS,
    nll_of,
    requests_of,
    require_same_nll,
    require_same_texts,
    require_sampled,
    texts_of,
)

BY_OPTIMUM = str(Path(__file__).with_name("by_optimum"))
WINDOWS = Protocol("sliding", 96, 32)
EXACT = ("past", "plain")


@pytest.fixture(scope="module")
def onnx(opened: Callable[..., Any]) -> Callable[..., Any]:
    """Opens a model with this engine."""
    return lambda name, **entry: opened(name, backend="onnx", **entry)


@pytest.fixture(scope="module")
def exact(onnx: Callable[..., Any]) -> dict[str, Any]:
    return {name: onnx(name) for name in EXACT}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda each: f"{each.name}-{each.max_length}")
def test_every_token_has_the_nll_of_transformers(
    reference: Any, exact: dict[str, Any], protocol: Protocol, name: str
) -> None:
    require_same_nll(exact[name], reference, protocol)


@pytest.mark.parametrize("name", EXACT)
def test_what_it_draws_has_the_likelihoods_that_it_wrote_by(reference: Any, exact: dict[str, Any], name: str) -> None:
    require_sampled(exact[name], reference)


def test_a_folder_that_optimum_made_has_the_numbers_of_its_checkpoint(opened: Callable[..., Any]) -> None:
    expected, found = opened(BY_OPTIMUM), opened(BY_OPTIMUM, backend="onnx")
    for protocol in (WINDOWS, Protocol("llama.cpp", 64), Protocol("gptq", 128)):
        assert np.abs(nll_of(found, protocol) - nll_of(expected, protocol)).max() < 1e-4
    prompts = [text_of(length, length) for length in (3, 9)]
    for how in (WAYS[0], *WAYS[3:]):  # a draw of the third is within rounding of the next token's
        texts = texts_of(expected, prompts, max_new_tokens=30, **how)
        assert texts_of(found, prompts, max_new_tokens=30, **how) == texts


def test_weights_in_a_file_beside_the_model_are_the_same(exact: dict[str, Any], onnx: Callable[..., Any]) -> None:
    assert np.array_equal(nll_of(onnx("data-beside"), WINDOWS), nll_of(exact["past"], WINDOWS))


@pytest.mark.parametrize(("name", "least", "most"), [("past", 0, 1e-8), ("float16", 1e-9, 1e-3), ("int8", 1e-4, 0.2)])
@pytest.mark.parametrize("side_by_side", [True, False])
def test_the_divergence_from_the_float_model_is_that_of_rounding(
    reference: Any, onnx: Callable[..., Any], name: str, least: float, most: float, side_by_side: bool
) -> None:
    candidate = onnx(name)
    pair = ModelPair(("p", "q"), lambda: reference, lambda: candidate, side_by_side=side_by_side)
    found = compare(pair, requests_of(reference, Protocol("sliding", 128, 64)), JOB)
    assert least <= found[:, COLUMNS.index("kl")].mean() < most


def test_an_export_is_the_reference_of_another(exact: dict[str, Any], onnx: Callable[..., Any]) -> None:
    p, q = exact["past"], onnx("int8")
    pair = ModelPair(("p", "q"), lambda: p, lambda: q)
    found = compare(pair, requests_of(p, Protocol("disjoint", 128)), JOB)
    assert 1e-4 < found[:, COLUMNS.index("kl")].mean() < 0.2


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("how", WAYS, ids=str)
def test_texts_are_those_of_transformers(reference: Any, exact: dict[str, Any], how: dict[str, Any], name: str) -> None:
    require_same_texts(exact[name], reference, **how)


def test_a_text_ends_at_each_token_that_generation_config_names(
    exact: dict[str, Any], onnx: Callable[..., Any], files: Path, tmp_path: Path
) -> None:
    (whole,) = texts_of(exact["past"], ["the cat"], max_new_tokens=12)
    session, ids = exact["past"].loaded.model.session, list(exact["past"].tokenizer.encode("the cat", True))
    third = 0
    for _ in range(3):
        third = int(session.read(np.array([ids]))[0][0, -1].argmax())
        ids.append(third)
    folder = shutil.copytree(files / "past", tmp_path / "ends")
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": [2, {third}]}}')
    (cut,) = texts_of(onnx(str(folder)), ["the cat"], max_new_tokens=12)
    assert 0 < len(cut) < len(whole)
    assert whole.startswith(cut.rstrip("\N{REPLACEMENT CHARACTER}"))


def test_a_chat_is_put_into_the_template_of_the_folder(reference: Any, exact: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
    assert exact["past"].tokenizer.chat(messages) == reference.tokenizer.chat(messages)


@pytest.mark.parametrize("name", ["past", "float16", "int8"])
def test_the_number_of_threads_changes_no_number(onnx: Callable[..., Any], name: str) -> None:
    one, three = (onnx(name, load={"intra_op_num_threads": count}) for count in (1, 3))
    corpus = Corpus("d", (text_of(500),))
    protocol = Protocol("sliding", 514, 100)
    both = [score(each, requests_of(each, protocol, corpus), JOB).nll for each in (one, three)]
    assert np.array_equal(*both)
    written = [texts_of(each, [text_of(400)], max_new_tokens=60, truncate="left") for each in (one, three)]
    assert written[0] == written[1]


@pytest.mark.parametrize("protocol", [Protocol("document"), WINDOWS], ids=lambda each: each.name)
@pytest.mark.parametrize(("name", "rounding"), [("past", 1e-4), ("plain", 1e-4), ("int8", 0)])
def test_a_row_has_the_same_number_in_any_batch(
    onnx: Callable[..., Any], name: str, rounding: float, protocol: Protocol
) -> None:
    runner = onnx(name)
    requests = requests_of(runner, protocol)
    together = score(runner, requests, JOB).nll
    alone = score(runner, requests, Job(model="m", dataset="d", batch_size=1)).nll
    assert np.abs(together - alone).max() <= rounding


def test_rows_that_share_an_int8_scale_are_read_alone_and_the_session_says_so(onnx: Callable[..., Any]) -> None:
    said: list[str] = []
    runner = onnx("int8")
    score(runner, requests_of(runner, Protocol("document")), Job(model="m", dataset="d", log=Log(remark=said.append)))
    assert said == [
        "model 'int8': the numbers of a row depend on the other rows of its batch, so each row is read with no other "
        "row (slower)"
    ]


def test_a_model_that_sees_the_next_token_is_refused(onnx: Callable[..., Any]) -> None:
    with pytest.raises(ModelError, match="likelihood of a token depends on the tokens after it"):
        nll_of(onnx("looks-ahead"), WINDOWS)


def test_a_vocabulary_whose_size_the_file_does_not_tell_is_asked_for(
    exact: dict[str, Any], onnx: Callable[..., Any], files: Path, tmp_path: Path
) -> None:
    import onnx as library

    folder = shutil.copytree(files / "past", tmp_path / "unknown")
    model = library.load(folder / "model.onnx")
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_param = "vocabulary"
    library.save(model, folder / "model.onnx")
    found = onnx(str(folder))
    assert found.loaded.vocabulary_size == 320
    assert np.array_equal(nll_of(found, WINDOWS), nll_of(exact["past"], WINDOWS))


def test_nan_is_an_error_in_likelihoods_and_texts(onnx: Callable[..., Any], files: Path, tmp_path: Path) -> None:
    import onnx as library

    folder = shutil.copytree(files / "past", tmp_path / "nan")
    model = library.load(folder / "model.onnx")
    (table,) = (each for each in model.graph.initializer if "embed_tokens" in each.name)
    table.CopyFrom(library.numpy_helper.from_array(np.full(table.dims, np.nan, np.float32), table.name))
    library.save(model, folder / "model.onnx")
    runner = onnx(str(folder))
    with pytest.raises(NonFiniteError):
        nll_of(runner, WINDOWS)
    with pytest.raises(NonFiniteError, match="while generating"):
        texts_of(runner, ["the"], max_new_tokens=4)


def test_a_batch_that_does_not_fit_says_so_to_the_loop(exact: dict[str, Any]) -> None:
    with pytest.raises(OutOfMemory):
        exact["plain"].loaded.model.session.read(np.ones((1, 2_000_000), np.int64))
