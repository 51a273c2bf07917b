"""The protocol ``llama.cpp`` on a GGUF gives what llama.cpp's own program prints, `PRINTED`, to its last digit.

It was llama-perplexity of llama-cpp-python's own llama.cpp, with ``--device none -t 1``, and ``-b CONTEXT``: of fewer
than 64 tokens of a chunk at a time its flash attention computes in float16. For float32 weights the engine keeps
keys and values in float32 and switches flash attention off; the program was told ``-fa off -ctk f32 -ctv f32``, and
`ENGINE_AS_PROGRAM` makes the engine do as it does untold. The program rounds as its processor does, `ROUNDING`.
"""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is NOT installed; make test-gguf runs these tests")

from tests.engines.projects import Project

EXAMPLE = Path(__file__).parents[3] / "example_project"
ENGINE_AS_PROGRAM = "{flash_attn: true, type_k: f16, type_v: f16}"

Case = tuple[str, int]
# What the program prints of a file in a context: the perplexity and its error.
PRINTED: dict[str, dict[Case, tuple[str, str]]] = {
    "example": {
        ("f32", 128): ("2.0483", "0.03582"),
        ("f32", 256): ("2.0099", "0.03427"),
        ("f32-as-program", 128): ("2.0483", "0.03582"),
        ("f32-as-program", 256): ("2.0099", "0.03427"),
        ("f16", 128): ("2.0483", "0.03582"),
        ("f16", 256): ("2.0099", "0.03427"),
        ("q8_0", 128): ("2.0486", "0.03584"),
        ("q8_0", 256): ("2.0099", "0.03428"),
    },
    "real": {
        ("f32", 128): ("4.1544", "0.12943"),
        ("f32", 512): ("3.9011", "0.12122"),
        ("f32-as-program", 128): ("4.1543", "0.12943"),
        ("f32-as-program", 512): ("3.9013", "0.12123"),
        ("f16", 128): ("4.1539", "0.12940"),
        ("f16", 512): ("3.9010", "0.12121"),
        ("q8_0", 128): ("4.1641", "0.12985"),
        ("q8_0", 512): ("3.9098", "0.12170"),
    },
}
# How far the program's own figures may lie from those above on another processor. For SSE 4.2, AVX2 and AVX-512 it gave
# float32, float16 and q8_0, which multiplies in 8 bits, up to 0.0001, 0.0002 and 0.0017 otherwise.
ROUNDING = {"f32": 1.1e-4, "f32-as-program": 2.1e-4, "f16": 4.1e-4, "q8_0": 2.6e-3}


@pytest.fixture(params=["example", pytest.param("real", marks=pytest.mark.shared)])
def origin(request: pytest.FixtureRequest) -> str:
    """Where the files come from: the example's trained model, or a model that is not in this repository."""
    return str(request.param)


@pytest.fixture
def subject(origin: str, request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    """A project with the files of an origin, and a text that is long enough for its largest context."""
    if origin == "example":
        rows = (EXAMPLE / "data" / "bulletins.jsonl").read_text(encoding="utf-8").splitlines()[:100]
        text = "\n\n".join(json.loads(row)["text"] for row in rows)
        write_example(tmp_path)
    else:
        from tests.engines.gguf.converting import write_real_model

        data = request.getfixturevalue("shared_data")
        text = (data / "text" / "tinystories_150.txt").read_text(encoding="utf-8")[:16000].rstrip("\n")
        write_real_model(tmp_path, data)
    (tmp_path / "long.txt").write_text(text, encoding="utf-8")
    entries = {name: f"{{path: {name}.gguf}}" for name in ("f32", "f16", "q8_0")}
    entries["f32-as-program"] = f"{{path: f32.gguf, load: {ENGINE_AS_PROGRAM}}}"
    return Project(tmp_path, tmp_path, entries)


def write_example(folder: Path) -> None:
    """Copy the example's files, and write the one in float32 that it does not keep."""
    import gguf

    spec = importlib.util.spec_from_file_location("to_gguf", EXAMPLE / "to_gguf.py")
    assert spec is not None
    assert spec.loader is not None
    to_gguf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(to_gguf)
    source, kind = EXAMPLE / "models" / "float", gguf.GGMLQuantizationType.F32
    to_gguf.write(source, folder / "f32.gguf", kind, gguf.LlamaFileType.ALL_F32)
    for name in ("f16", "q8_0"):
        shutil.copy(EXAMPLE / "models" / f"float-{name}.gguf", folder / f"{name}.gguf")


def measured(project: Project, cases: list[Case]) -> dict[Case, tuple[float, float]]:
    """Return of each model and context the perplexity, and the error as if tokens were independent."""
    (project.folder / "test_them.py").write_text(
        "import json, pathlib, pytest\n"
        f"@pytest.mark.parametrize(('model', 'context'), {cases})\n"
        "def test_it(ppl_of, model, context):\n"
        "    found = ppl_of(model, 'long', protocol='llama.cpp', max_length=context)\n"
        "    with pathlib.Path('found.jsonl').open('a') as file:\n"
        "        file.write(json.dumps([found.value, found.details['stderr_iid']]) + '\\n')\n"
    )
    said = project.run([])
    assert project.status == 0, said
    lines = (project.folder / "found.jsonl").read_text().splitlines()
    return {case: tuple(json.loads(line)) for case, line in zip(cases, lines, strict=True)}


def test_perplexity_and_error_are_those_that_the_program_printed(origin: str, subject: Project) -> None:
    found = measured(subject, list(PRINTED[origin]))
    for case, (value, error) in PRINTED[origin].items():
        assert found[case] == pytest.approx((float(value), float(error)), abs=ROUNDING[case[0]]), case
