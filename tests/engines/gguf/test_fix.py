"""``lmgate fix`` of GGUF files: the mixed file, its recipe applied by llama.cpp, and what it refuses."""

import ctypes
import json
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is NOT installed; make test-gguf runs these tests")

import gguf
import llama_cpp
import numpy as np

from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.settings.file import load_project
from pytest_lmgate.settings.session import Options
from pytest_lmgate.tools.fix.costs import together
from pytest_lmgate.tools.fix.gguf_hybrids import GgufHybrids
from tests.end_to_end.projects import environment
from tests.engines.projects import text_of, trained_tokenizer, write_float_model
from tests.warm import warm_python

TYPES = {kind.name.lower(): kind for kind in gguf.GGMLQuantizationType}
Q4_0 = gguf.LlamaFileType.MOSTLY_Q4_0
Q8_0 = gguf.LlamaFileType.MOSTLY_Q8_0
Q4_K_M = gguf.LlamaFileType.MOSTLY_Q4_K_M


def quantize(source: Path, target: Path, options: str = "", ftype: int = Q4_0) -> None:
    """Do what ``llama-quantize OPTIONS SOURCE TARGET Q4_0`` does: its main function reads the options as here."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = ftype, 1
    words, overrides = shlex.split(options), []
    for option, value in zip(words[::2], words[1::2], strict=True):
        if option == "--tensor-type":
            pattern, _, kind = value.rpartition("=")
            overrides.append((pattern.lower().encode(), TYPES[kind.lower()]))
        else:
            field = {"--output-tensor-type": "output_tensor_type", "--token-embedding-type": "token_embedding_type"}
            setattr(params, field[option], TYPES[value.lower()])
    table = (llama_cpp.llama_model_tensor_override * (len(overrides) + 1))(*overrides)
    params.tt_overrides = table
    assert llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in 16 bits, its Q4_0 by llama.cpp, rows and others to refuse."""
    from tests.engines.gguf.converting import write_gguf

    folder = tmp_path_factory.mktemp("fix")
    model, tokenizer = write_float_model(folder / "float", num_hidden_layers=4)
    write_gguf(folder / "f16.gguf", model, tokenizer, dtype="f16")
    quantize(folder / "f16.gguf", folder / "q4.gguf")
    quantize(folder / "f16.gguf", folder / "q8.gguf", ftype=Q8_0)
    other, tokenizer = write_float_model(folder / "short", num_hidden_layers=3)
    write_gguf(folder / "short.gguf", other, tokenizer, dtype="f16")
    write_gguf(folder / "parts.gguf", model, tokenizer, dtype="f16", parts_of=8)
    (first,) = folder.glob("parts-00001-of-*.gguf")
    rows = [{"text": text_of(12, seed)} for seed in range(120)]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    names = {name: f"{name}.gguf" for name in ("f16", "q4", "q8", "short", "mixed", "again")}
    models = {name: {"path": path} for name, path in (names | {"float": "float", "parts": first.name}).items()}
    datasets = {name: {"path": "rows.jsonl"} for name in ("rows", "q4")}  # one is called as a model is
    (folder / "lmgate.yaml").write_text(json.dumps({"models": models, "datasets": datasets}))
    (folder / "pytest.ini").write_text("[pytest]\n")
    return folder


def run(folder: Path, *arguments: str, rc: int = 0, module: str = "pytest_lmgate.cli") -> str:
    command = [warm_python(environment()), "-m", module, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == rc, done.stdout + done.stderr
    return done.stdout if rc == 0 else done.stdout + done.stderr


def fixed(folder: Path, *arguments: str, limit: float) -> Any:
    given = ("fix", "q4", "rows", "--against", "f16", "--kl", str(limit), "--json", *arguments)
    return json.loads(run(folder, *given))


def tensors_of(path: Path) -> dict[str, tuple[str, bytes]]:
    return {each.name: (each.tensor_type.name, np.array(each.data).tobytes()) for each in gguf.GGUFReader(path).tensors}


def metadata_of(path: Path) -> dict[str, Any]:
    return {name: each.contents() for name, each in gguf.GGUFReader(path).fields.items() if name[:5] != "GGUF."}


@pytest.fixture(scope="module")
def candidate_kl(folder: Path) -> float:
    return float(fixed(folder, limit=1e3)["sets"][0]["kl"])


@pytest.fixture(scope="module")
def mixed(folder: Path, candidate_kl: float) -> Any:
    """What was found for a third of the candidate's KL."""
    found = fixed(folder, "--write-gguf", "mixed.gguf", limit=candidate_kl / 3)
    assert found["proof"]["verdict"] == "pass"
    return found


def test_the_mixed_file_has_the_chosen_tensors_of_the_reference_and_all_else_of_the_candidate(
    folder: Path, mixed: Any
) -> None:
    made, ours, theirs = (tensors_of(folder / f"{name}.gguf") for name in ("mixed", "f16", "q4"))
    kept = [name for name in theirs if made[name] != theirs[name]]
    assert kept
    assert {name: made[name] for name in kept} == {name: ours[name] for name in kept}
    assert metadata_of(folder / "mixed.gguf") == metadata_of(folder / "q4.gguf")
    sizes = [(folder / f"{name}.gguf").stat().st_size for name in ("mixed", "q4")]
    extra = mixed["chosen"]["extra_bytes"]
    assert sizes[0] - sizes[1] == extra < 0.9 * sum(each["extra_bytes"] for each in mixed["groups"])


def test_llama_cpp_quantizes_by_the_recipe_to_the_same_tensors_with_the_kl_and_verdict_that_were_promised(
    folder: Path, mixed: Any
) -> None:
    assert list(mixed["recipe"]) == ["llama.cpp"]
    quantize(folder / "f16.gguf", folder / "again.gguf", mixed["recipe"]["llama.cpp"]["llama-quantize"])
    assert tensors_of(folder / "again.gguf") == tensors_of(folder / "mixed.gguf")
    limit = mixed["proof"]["nats"]["limit"]
    gate = {"model": "again", "reference": "f16", "dataset": "rows", "limit": limit, "confidence": 0.95}
    settings = json.loads((folder / "lmgate.yaml").read_text())
    (folder / "lmgate.yaml").write_text(json.dumps({**settings, "gates": [{"kl_max": gate}]}))
    run(folder, "-p", "no:cacheprovider", "--lmgate-report", "json:report.json", module="pytest")
    (judged,) = json.loads((folder / "report.json").read_text())["gates"]
    assert judged["verdict"] == "pass"
    assert judged["value"] == pytest.approx(mixed["proof"]["nats"]["mean"], rel=0.1)


def test_groups_are_kept_as_in_a_third_file_and_the_recipe_has_its_types(
    folder: Path, mixed: Any, candidate_kl: float
) -> None:
    kept = fixed(folder, "--keep", "q8", "--write-gguf", "with_q8.gguf", limit=candidate_kl / 3)
    assert kept["proof"]["verdict"] == "pass"
    assert 0 < kept["floor"]["nats"]["mean"] < candidate_kl / 10
    assert kept["chosen"]["extra_bytes"] < 0.6 * mixed["chosen"]["extra_bytes"]  # 4 bits more, not 12
    made, ours, theirs = (tensors_of(folder / f"{name}.gguf") for name in ("with_q8", "q8", "q4"))
    changed = {name: made[name] for name in theirs if made[name] != theirs[name]}
    assert changed == {name: ours[name] for name in changed} != {}
    recipe = kept["recipe"]["llama.cpp"]["llama-quantize"]
    assert "=q8_0'" in recipe
    quantize(folder / "f16.gguf", folder / "by_recipe.gguf", recipe)
    assert tensors_of(folder / "by_recipe.gguf") == made


def test_by_the_recipe_llama_cpp_gives_all_other_tensors_the_types_that_it_mixed_for_q4_k_m(tmp_path: Path) -> None:
    from tests.engines.gguf.converting import write_gguf
    from tests.models.zoo import build

    sizes = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 256}
    tokenizer = trained_tokenizer()
    model = build("llama", vocab_size=320, max_position_embeddings=128, num_hidden_layers=4, **sizes)
    write_gguf(tmp_path / "f16.gguf", model, tokenizer, dtype="f16")
    quantize(tmp_path / "f16.gguf", tmp_path / "q4.gguf", ftype=Q4_K_M)
    candidate = tensors_of(tmp_path / "q4.gguf")
    assert {"Q4_K", "Q6_K"} == {candidate[f"blk.{block}.attn_v.weight"][0] for block in range(4)}
    models = {name: {"path": f"{name}.gguf"} for name in ("f16", "q4")}
    (tmp_path / "lmgate.yaml").write_text(json.dumps({"models": models}))
    evaluator = Evaluator(load_project(tmp_path), Options(cache=tmp_path / "cache"))
    p, q = (evaluator.resolver.model(name) for name in ("f16", "q4"))
    hybrids = GgufHybrids(p, q, together(evaluator.measurements, p, q))
    groups = [part for part in hybrids.parts if part.kind != "outside"]
    assert len(groups) == 4 * 4 + 2
    for kept in [*([group] for group in groups), groups[::3], groups[1::2]]:
        hybrids.write(kept, tmp_path / "mixed.gguf")
        quantize(tmp_path / "f16.gguf", tmp_path / "again.gguf", " ".join(hybrids.tensor_types(kept)), Q4_K_M)
        made, paths = tensors_of(tmp_path / "mixed.gguf"), {name for part in kept for name in part.paths}
        assert tensors_of(tmp_path / "again.gguf") == made, [part.name for part in kept]
        assert {name for name in made if made[name] != candidate[name]} == paths


def test_a_second_run_measures_nothing_and_no_file_is_left(folder: Path, mixed: Any, candidate_kl: float) -> None:
    entries = folder / ".lmgate_cache" / "divergence"
    begun = {path: path.read_bytes() for path in entries.rglob("*") if path.is_file()}
    assert len(begun) > len(mixed["groups"])
    assert fixed(folder, limit=candidate_kl / 3) == mixed
    assert {path: path.read_bytes() for path in entries.rglob("*") if path.is_file()} == begun
    assert not [*Path(tempfile.gettempdir()).glob("lmgate-fix-*")]


@pytest.mark.parametrize(
    ("candidate", "reference", "more", "says"),
    [
        ("q4", "float", (), "'q4' is run by llama.cpp and 'float' by transformers; for a GGUF, give the"),
        ("q4", "short", (), "only one of them has blk.3.attn_k.weight, blk.3.attn_norm.weight"),
        ("q4", "parts", (), "is one of several files: expected a GGUF in one file; join them by"),
        ("f16", "q4", (), "no tensor of 'q4' takes more bytes"),
        ("q4", "f16", ("--bits", "4"), "--bits: 'q4' is a GGUF, which has the bytes of its format"),
        ("q4", "f16", ("--write-gguf", "q4.gguf"), "--write-gguf q4.gguf: expected another file than those"),
        ("q4", "f16", ("--html", "f16.gguf"), "--html f16.gguf: expected another file than those of the models"),
        ("q4", "f16", ("--write-gguf", "none/x.gguf"), "none/x.gguf: cannot be written: No such file or directory"),
        ("float", "float", ("--write-gguf", "x.gguf"), "--write-gguf: expected two GGUF files, but 'float' is a check"),
    ],
)
def test_what_cannot_be_mixed_is_said(
    folder: Path, candidate: str, reference: str, more: tuple[str, ...], says: str
) -> None:
    before = (folder / "q4.gguf").read_bytes()
    said = run(folder, "fix", candidate, "rows", "--against", reference, "--kl", "1e-9", *more, rc=3)
    assert says in " ".join(said.split())
    assert (folder / "q4.gguf").read_bytes() == before
