"""Annotations of GitHub, from real pytest processes."""

from tests.end_to_end.projects import Project

ANNOTATED = '''
    import pytest

    pytestmark = pytest.mark.bpb_max("sure", "words", 0.1)

    @pytest.mark.parametrize("x", [1])
    @pytest.mark.ppl_max("die", "words", 59.5)
    @pytest.mark.ppl_max(
        "sure",
        "words",
        59.5,
    )
    def test_gate(x): pass

    @pytest.mark.ppl_max("die", "words", 56.5)
    class TestClass:
        @pytest.mark.skipif(False, reason="""slow: ppl_max
        class of models""")
        @pytest.mark.ppl_max("die", "words", 60.5)
        @pytest.mark.ppl_max("die", "words", 58.5)
        async def test_method(self): pass

    @pytest.mark.xfail
    @pytest.mark.ppl_max("die", "words", 57.5)
    def test_known(): pass
'''  # fmt: skip


def test_annotations_stand_on_the_lines_of_markers_and_of_gates_in_yaml(measured: Project) -> None:
    file = measured.folder / "lmgate.yaml"
    text = file.read_text(encoding="utf-8")
    gates = "gates:\n  - ppl_max: {model: die, dataset: words, limit: 59.5}\n"
    prompt = "  unused:\n    path: words.txt\n    references: text\n    prompt: |\n      @ppl_max is no marker here\n"
    file.write_text(f"{gates}{text}{prompt}", encoding="utf-8")
    measured.write(test_gate=ANNOTATED)
    for arguments in ((), ("-n", "2")):
        done = measured.run("--lmgate-report=github", *arguments, env={"GITHUB_WORKSPACE": str(measured.folder.parent)})
        commands = [line for line in done.expect(1).out.splitlines() if line.startswith("::")]
        here = measured.folder.name
        assert sorted(command.partition(",title=")[0] for command in commands) == sorted(
            f"::error file={here}/{file},line={line}"
            for file, line in [
                ("lmgate.yaml", 2), ("test_gate.py", 5), ("test_gate.py", 6), ("test_gate.py", 7),
                ("test_gate.py", 16), ("test_gate.py", 16), ("test_gate.py", 19),
            ]
        )  # fmt: skip
        assert done.out.rstrip().endswith(commands[-1])
