"""What is onnxruntime's own: folders of optimum, weights beside a file, one of several, scales of int8, the example."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.settings.gate_options import WindowProtocol

pytest.importorskip("onnxruntime", reason="onnxruntime is NOT installed; make test-onnx runs these tests")

from pytest_lmgate.engines.base import OutOfMemory
from pytest_lmgate.errors import ModelError
from tests.engines.example import EXAMPLE, require_same_bytes, require_shown
from tests.engines.numbers import CORPUS, nll_of, texts_of
from tests.engines.projects import described, text_of

BY_OPTIMUM = str(Path(__file__).with_name("by_optimum"))
WINDOWS = WindowProtocol("sliding", 96, 32)


@pytest.fixture(scope="module")
def onnx(opened: Callable[..., Any]) -> Callable[..., Any]:
    return lambda name, **entry: opened(name, backend="onnx", **entry)


def test_a_folder_that_optimum_made_has_the_numbers_of_its_checkpoint(opened: Callable[..., Any]) -> None:
    expected, found = opened(BY_OPTIMUM), opened(BY_OPTIMUM, backend="onnx")
    for protocol in (WINDOWS, WindowProtocol("llama.cpp", 64), WindowProtocol("gptq", 128)):
        assert np.abs(nll_of(found, protocol) - nll_of(expected, protocol)).max() < 1e-4
    prompts = [text_of(length, length) for length in (3, 9)]
    for how in ({}, {"seed": 5, "top_p": 0.7, "temperature": 1.3}):
        texts = texts_of(expected, prompts, max_new_tokens=30, **how)
        assert texts_of(found, prompts, max_new_tokens=30, **how) == texts


def test_weights_beside_the_model_count_and_other_exports_do_not(
    onnx: Callable[..., Any], files: Path, tmp_path: Path
) -> None:
    assert np.array_equal(nll_of(onnx("data-beside"), WINDOWS), nll_of(onnx("past"), WINDOWS))
    folder = Path(shutil.copytree(files / "data-beside", tmp_path / "mine"))
    (folder / "other.onnx").write_bytes(b"another export")
    content = [
        described("m", path=str(path), **how).content
        for path, how in (
            (folder / "model.onnx", {}),
            (folder, {"backend": "onnx", "load": {"file_name": "model.onnx", "intra_op_num_threads": 3}}),
        )
    ]
    assert content[0] == content[1]
    assert any("model.onnx_data" in name for name in content[0])


def test_one_of_several_files_is_chosen_by_name_or_path_also_below_the_config(
    onnx: Callable[..., Any], files: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(files / "past", tmp_path / "several"))
    (folder / "onnx").mkdir()
    shutil.move(folder / "model.onnx", folder / "onnx" / "model.onnx")
    shutil.copy(files / "int8" / "model_quantized.onnx", folder / "onnx")
    one = described("m", path=str(folder), backend="onnx", load={"file_name": "onnx/model.onnx"})
    two = described("m", path=str(folder / "onnx" / "model_quantized.onnx"))
    for model, name in ((one, "past"), (two, "int8")):
        assert np.array_equal(nll_of(model.open(), WINDOWS), nll_of(onnx(name), WINDOWS))


def nll_of_a_loop(file: Path, ids: list[int], targets: list[int]) -> list[float]:
    """Return the NLLs of the first targets after each token, read by onnxruntime in one call."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file)
    fed = {"input_ids": [ids], "attention_mask": [[1] * len(ids)], "position_ids": [range(len(ids))]}
    fed = {name: np.array(values, dtype=np.int64) for name, values in fed.items()}
    for each in session.get_inputs():
        if each.name not in fed:
            fed[each.name] = np.zeros((1, each.shape[1], 0, each.shape[3]), dtype=np.float32)
    logits = session.run(["logits"], fed)[0][0].astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return [-float(logprobs[at, target]) for at, target in enumerate(targets)]


def test_windows_of_an_int8_model_are_read_as_far_as_the_protocols_program_reads_them(
    onnx: Callable[..., Any], files: Path
) -> None:
    runner, file = onnx("int8"), files / "int8" / "model_quantized.onnx"
    ids = runner.tokenizer.ids(CORPUS.join.join(CORPUS.rows), special=False).tolist()
    some = [ids[begin : begin + 128] for begin in range(0, len(ids), 128)]
    whole, short = ([nll_of_a_loop(file, each[:end], each[1:]) for each in some] for end in (128, -1))
    assert nll_of(runner, WindowProtocol("disjoint", 128)) == pytest.approx(np.concatenate(whole), rel=1e-5, abs=1e-5)
    assert np.abs(np.concatenate(whole) - np.concatenate(short)).max() > 1e-3, "the last token changes the scale"

    # The harness leaves the last token out.
    rows = [runner.tokenizer.ids(row, special=False).tolist() for row in CORPUS.rows]
    expected = [nll for row in rows for nll in nll_of_a_loop(file, [runner.tokenizer.bos, *row[:-1]], row)]
    assert nll_of(runner, WindowProtocol("lm-eval")) == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_a_vocabulary_whose_size_the_file_does_not_tell_is_asked_for(
    onnx: Callable[..., Any], files: Path, tmp_path: Path
) -> None:
    import onnx as library

    folder = shutil.copytree(files / "past", tmp_path / "unknown")
    model = library.load(folder / "model.onnx")
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_param = "vocabulary"
    library.save(model, folder / "model.onnx")
    found = onnx(str(folder))
    assert found.loaded.vocabulary_size == 320
    assert np.array_equal(nll_of(found, WINDOWS), nll_of(onnx("past"), WINDOWS))


def test_a_batch_that_does_not_fit_says_so_to_the_loop(onnx: Callable[..., Any]) -> None:
    with pytest.raises(OutOfMemory):
        onnx("plain").loaded.model.session.read(np.ones((1, 200_000), np.int64))


def test_a_library_that_is_old_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_lmgate.engines.onnx.session import library

    monkeypatch.setattr("onnxruntime.__version__", "1.23.2")
    with pytest.raises(ModelError, match=r"expected onnxruntime 1\.24 or newer, got 1\.23\.2: pip install -U"):
        library("unseen")


def test_gates_of_the_example_pass_and_print_what_its_readme_shows(tmp_path: Path) -> None:
    require_shown("test_onnx.py", tmp_path)


def test_the_script_of_the_example_writes_the_same_bytes_again(tmp_path: Path) -> None:
    files = sorted(path.name for path in (EXAMPLE / "models" / "float-onnx").iterdir())
    assert "model.onnx" in files
    require_same_bytes("to_onnx.py", tmp_path, *(f"float-onnx/{name}" for name in files))
