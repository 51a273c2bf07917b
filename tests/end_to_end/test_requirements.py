"""What a model requires of the machine: a test is skipped where it lacks, and fails with --lmgate-require-all."""

from pathlib import Path

from tests.end_to_end.projects import Project


def test_a_gate_and_a_fixture_of_a_model_whose_program_is_missing_are_skipped_unless_all_are_required(
    project: Project, models: Path
) -> None:
    server = "{command: 'no-such-program {port}', requires: {command: no-such-program}}"
    served = f"server: {server}, model: m, tokenizer: {models / 'die'}, load: {{context: 16}}"
    project.add("models", served=served).write(
        test_it="""
            import pytest

            @pytest.mark.ppl_max("served", "words", 9)
            def test_gate(): pass

            def test_fixture(ppl_of): ppl_of("served", "words")
        """,
    )
    lacks = "models.served.server.requires: expected the program 'no-such-program' in PATH, found none"
    project.run("-rs").expect(0, skipped=2).says(lacks)
    project.run("--lmgate-require-all").expect(1, failed=1, error=1).says(lacks)
