"""ONNX exports gated in real pytest processes: numbers, the cache, resuming, which file of several, errors."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is NOT installed; make test-onnx runs these tests")

from pytest_lmgate.errors import ModelError
from tests.engines.projects import (
    OPTIONS,
    Project,
    interrupted,
    ppl,
    require_kept,
    require_refusals,
    require_sampled_kl,
    require_twins,
    twin_gates,
    watched,
)

RUNNER = "pytest_lmgate.engines.onnx.session:OnnxRunner"
WATCHED = watched(RUNNER, note="{self.loaded.name}-{len(requests)}")


def test_every_metric_of_an_export_is_that_of_the_float_model_and_is_kept(project: Project) -> None:
    gates = twin_gates("float", "past", "plain")
    chrf = "chrf_min: {model: MODEL, dataset: news, limit: 0.001, max_new_tokens: 24, seed: 1, top_k: 9}"
    gates += [chrf.replace("MODEL", model) for model in ("float", "past", "plain")]
    kl = "kl_max: {model: MODEL, reference: REFERENCE, dataset: text, limit: LIMIT, max_length: 128}"
    pairs = [("past", "float", "0.000001"), ("float", "plain", "0.000001"), ("int8", "float", "0.2")]
    for model, p, limit in (*pairs, ("float", "int8", "0.2"), ("float16", "past", "0.001")):
        gates.append(kl.replace("MODEL", model).replace("REFERENCE", p).replace("LIMIT", limit))
    gates += ["top1_min: {model: float16, reference: float, dataset: text, limit: 0.9, max_length: 128}"]
    for model, against in (("past", "float"), ("float", "past")):
        gates += [
            f"no_regression: {{metric: {metric}, model: {model}, dataset: {data}, tolerance: 0.1%, against: {against}}}"
            for metric, data in (("ppl", "text"), ("accuracy", "quiz"))
        ]
    said = project.run(gates)
    assert project.status == 0, said
    require_twins(project, "past", "plain")
    assert project.stderr == ""

    require_kept(project, gates, RUNNER)


def test_a_sampled_divergence_from_transformers_finds_a_damaged_export(project: Project) -> None:
    require_sampled_kl(project, "past", "damaged", {"damaged": "{path: {files}/damaged, backend: onnx}"})


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


def test_windows_of_an_int8_model_are_read_as_far_as_the_protocols_program_reads_them(project: Project) -> None:
    import transformers

    said = project.run(
        [ppl("int8", "max_length: 128, protocol: disjoint").replace("text", "long"), ppl("int8", OPTIONS[3])]
    )
    assert project.status == 0, said
    windows, rows = project.values.values()
    file = project.files / "int8" / "model_quantized.onnx"
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent)

    def tokens(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]  # type: ignore[no-any-return]

    ids = tokens((project.folder / "long.txt").read_text(encoding="utf-8"))
    some = [ids[begin : begin + 128] for begin in range(0, len(ids), 128)]
    whole, short = (
        np.exp(np.mean([nll for each in some for nll in nll_of_a_loop(file, each[:end], each[1:])]))
        for end in (128, -1)
    )
    assert windows == pytest.approx(whole, rel=1e-6)
    assert abs(whole / short - 1) > 1e-5, "the last token changes the scale"

    # The harness leaves the last token out.
    texts = [tokens(json.loads(line)["text"]) for line in (project.folder / "text.jsonl").read_text().splitlines()]
    of_rows = [nll for row in texts for nll in nll_of_a_loop(file, [tokenizer.bos_token_id, *row[:-1]], row)]
    assert rows == pytest.approx(np.exp(np.mean(of_rows)), rel=1e-6)


def test_an_interrupted_measurement_goes_on_where_it_was(project: Project) -> None:
    (project.folder / "conftest.py").write_text(WATCHED)
    parts, whole = interrupted(project, "{path: {files}/past, backend: onnx, batch_size: 2}", after=7)
    assert len(whole) > 7
    assert len(parts) < 2 * len(whole), "only the trials before the first batch run again"


def test_what_changes_a_number_is_in_the_address_and_threads_are_not(project: Project) -> None:
    (project.folder / "conftest.py").write_text(WATCHED)
    folder = shutil.copytree(project.files / "data-beside", project.folder / "mine")
    models = {
        "first": "{path: mine, backend: onnx}",
        "file": "{path: mine/model.onnx}",
        "threads": "{path: mine, backend: onnx, load: {intra_op_num_threads: 3, file_name: model.onnx}}",
        "level": "{path: mine, backend: onnx, load: {graph_optimization_level: disable}}",
    }

    def measured() -> set[str]:
        scored = project.folder / "scored.txt"
        scored.write_text("")
        said = project.run([ppl(name) for name in models], models)
        assert project.status == 0, said
        return {line.partition("-")[0] for line in scored.read_text().split()}

    assert measured() == {"first", "level"}
    data = folder / "model.onnx_data"
    weights = bytearray(data.read_bytes())
    weights[-1] ^= 1
    data.write_bytes(weights)
    assert measured() == {"first", "level"}


def test_one_of_several_files_is_chosen_by_name_or_path_also_below_the_config(project: Project) -> None:
    folder = shutil.copytree(project.files / "past", project.folder / "several")
    (folder / "onnx").mkdir()
    shutil.move(folder / "model.onnx", folder / "onnx" / "model.onnx")
    shutil.copy(project.files / "int8" / "model_quantized.onnx", folder / "onnx")
    models = {
        "one": "{path: several, backend: onnx, load: {file_name: onnx/model.onnx}}",
        "two": "{path: several/onnx/model_quantized.onnx}",
    }
    said = project.run([ppl(name) for name in ("one", "two", "past", "int8")], models)
    assert project.status == 0, said
    one, two, past, int8 = project.values.values()
    assert (one, two) == (past, int8)
    assert one != two


def without_data(folder: Path) -> None:
    (folder / "model.onnx_data").unlink()


def with_short_data(folder: Path) -> None:
    data = folder / "model.onnx_data"
    data.write_bytes(data.read_bytes()[:5000])


def cut(folder: Path) -> None:
    model = folder / "model.onnx"
    model.write_bytes(model.read_bytes()[:-5000])


def pointer(folder: Path) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:1234\nsize 5\n"
    (folder / "model.onnx").write_text(text)


def pointer_to_data(folder: Path) -> None:
    pointer(folder)
    shutil.move(folder / "model.onnx", folder / "model.onnx_data")
    (folder / "model.onnx").write_bytes(b"")


def without_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


def put(file: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / file).write_text(text)


def edited(edit: Callable[[Any], object]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        import onnx

        model = onnx.load(folder / "model.onnx")
        edit(model)
        onnx.save(model, folder / "model.onnx")

    return make


@edited
def hidden_states(model: Any) -> None:
    (node,) = (node for node in model.graph.node if "logits" in node.output)
    node.output[0] = model.graph.output[0].name = "last_hidden_state"


@edited
def branch(model: Any) -> None:
    import onnx

    model.graph.input.append(onnx.helper.make_tensor_value_info("use_cache_branch", onnx.TensorProto.BOOL, [1]))


@edited
def fixed_shape(model: Any) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 128


@edited
def own_operator(model: Any) -> None:
    import onnx

    next(node for node in model.graph.node if node.op_type == "MatMul").domain = "my.operators"
    model.opset_import.append(onnx.helper.make_opsetid("my.operators", 1))


def small_vocabulary(folder: Path) -> None:
    from tests.engines.projects import trained_tokenizer

    tokenizer = trained_tokenizer()
    tokenizer.add_tokens(["the"])
    tokenizer.save_pretrained(folder)


T5 = '{"is_encoder_decoder": true, "architectures": ["T5ForConditionalGeneration"]}'
WRONG: list[tuple[Callable[[Path], object] | None, str, str]] = [
    (None, "{path: nowhere, backend: onnx}", "no such folder: {folder}/nowhere; check models.x0.path"),
    (None, "{path: nowhere/model.onnx}", "no such file: {folder}/nowhere/model.onnx"),
    (None, "{backend: onnx}", "expected path: of a folder that optimum exported, or of an .onnx file"),
    (
        lambda folder: (folder / "model.onnx").unlink(),
        "",
        "no .onnx file in {folder}/mine: expected a folder made by optimum-cli export onnx",
    ),
    (
        lambda folder: shutil.copy(folder / "model.onnx", folder / "model_int4.onnx"),
        "",
        "several .onnx files (model.onnx, model_int4.onnx): name one, as in load: {file_name: model.onn",
    ),
    (None, "load: {file_name: other.onnx}", "no such file: {folder}/mine/other.onnx"),
    (without_data, "", "External data path does not exist"),
    (with_short_data, "", "truncated or damaged: copy it again"),
    (cut, "", "Protobuf parsing failed; the file is truncated or damaged: copy it again"),
    (pointer, "", "mine/model.onnx is a Git LFS pointer, not the file itself: run git lfs pull"),
    (pointer_to_data, "", "mine/model.onnx_data is a Git LFS pointer, not the file itself: run git lfs pull"),
    (without_tokenizer, "", "no tokenizer in {folder}/mine"),
    (put("config.json", T5), "", "the one in {folder}/mine is encoder-decoder (T5ForConditionalGeneration)"),
    (
        put("config.json", '{"architectures": ["BertForMaskedLM"]}'),
        "",
        "the one in {folder}/mine is masked (BertForMaskedLM)",
    ),
    (hidden_states, "", "lacks the outputs logits of a causal model (it has last_hidden_state"),
    (branch, "", "needs inputs that this engine does not have (use_cache_branch)"),
    (fixed_shape, "", "but a text may be of any length"),
    (own_operator, "", "libraries of custom operators are not supported"),
    (small_vocabulary, "", "its tokenizer gives token id 320, but its vocabulary has 320 entries"),
    (None, "dtype: float16", ".dtype: the engine onnx does not support it: a file has the dtype that it was"),
    (None, "adapter: a", ".adapter: the engine onnx does not support it: merge the adapter"),
    (None, "trust_remote_code: true", ".trust_remote_code: the engine onnx does not support it"),
    (None, "load: {threads: 2}", "the engine onnx has no option 'threads'"),
    (None, "load: {intra_op_num_threads: 0}", "expected a whole number from 1, got 0"),
    (None, "load: {graph_optimization_level: al}", "got 'al' (did you mean 'all'?)"),
    (None, "device: cuda", "the device 'cuda' cannot be used: this onnxruntime has"),
    (None, "device: mps", "the device 'mps' cannot be used: this onnxruntime has"),
    (None, "{path: {files}/past}", "it holds model.onnx, which runs with backend: onnx"),
]


def test_a_wrong_file_or_entry_is_one_clear_sentence(project: Project) -> None:
    models, messages = {}, []
    for number, (make, entry, message) in enumerate(WRONG):
        name = f"x{number}"
        kind = "data-beside" if make in (without_data, with_short_data) else "past"
        folder = shutil.copytree(project.files / kind, project.folder / name)
        if make is not None:
            make(folder)
        own = entry if entry.startswith("{") else f"{{path: {name}, backend: onnx{', ' * bool(entry)}{entry}}}"
        models[name] = own.replace("mine", name)
        messages.append(message.replace("{folder}", str(project.folder)).replace("mine", name))
    said = project.run([ppl(name) for name in models], models)
    assert project.status == 1, said
    assert [message for message in messages if message not in said] == [], said
    assert f"{len(WRONG)} errors" in said
    assert "Traceback" not in said


def test_what_an_export_cannot_do_is_one_clear_sentence(project: Project) -> None:
    require_refusals(project, "past")


def test_a_library_that_is_missing_or_old_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_lmgate.engines.onnx.session import library

    monkeypatch.setattr("onnxruntime.__version__", "1.23.2")
    library.cache_clear()
    with pytest.raises(ModelError, match=r"expected onnxruntime 1\.24 or newer, got 1\.23\.2: pip install -U"):
        library("m")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModelError, match=r"pip install 'pytest-lmgate\[onnx\]'"):
        library("m")
