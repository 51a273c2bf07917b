"""Fixtures ``ppl_of`` and ``bpb_of``, and ``lmgate measure``: the numbers of gates, from the same cache."""

import re
from pathlib import Path

import pytest

from tests.end_to_end.projects import FACES, GATE, Project, lmgate, lmgate_json


def test_a_score_is_a_float_that_knows_its_noise_and_reads_well_in_a_failed_assertion(measured: Project) -> None:
    measured.write(
        test_scores="""
            import math
            import pytest
            import pytest_lmgate as lmgate

            def test_is_a_float(ppl_of, bpb_of):
                score = ppl_of("die", "words")
                assert isinstance(score, float) and isinstance(score, lmgate.Score)
                assert score == pytest.approx(60, rel=1e-6) and score.n == 399 and score.unit == "token"
                assert score.interval[0] <= score <= score.interval[1] and score.stderr < 1e-6 and score.cached
                assert "protocol:sliding|max_length:32|stride:16" in score.signature
                bits = bpb_of("die", "words")
                assert bits == pytest.approx(399 * math.log2(60) / bits.n) and bits.unit == "byte"
                per_word = ppl_of("die", "words", unit="word")
                assert per_word == pytest.approx(60, rel=1e-6) and per_word.cached

            def test_fails(ppl_of):
                assert ppl_of("sure", "words") < 16.5
        """
    )
    outcome = measured.run("--lmgate-report=json:report.json").expect(1, passed=1, failed=1)
    outcome.says("assert ppl ", "sure on words, cached) < 16.5", "= ppl_of('sure', 'words')")
    outcome.says("measured in test_scores.py::test_fails: ppl_of ").is_silent_on("measured in test_scores.py::test_is")
    *_, measurement = measured.report()["measurements"]
    facts = [measurement[key] for key in ("test", "fixture", "model", "dataset", "cached")]
    assert facts == ["test_scores.py::test_fails", "ppl_of", "sure", "words", True]


def test_whatever_cannot_be_measured_is_one_sentence_at_the_users_own_line(measured: Project) -> None:
    measured.write(
        test_scores="""
            import pytest
            import pytest_lmgate as lmgate

            def test_name(ppl_of): ppl_of("dye", "words")

            def test_argument(ppl_of): ppl_of("die", "words", strid=8)

            def test_limit_is_for_markers(ppl_of): ppl_of("die", "words", 60)

            def test_type(ppl_of): ppl_of("die", 3)

            def test_can_be_expected(ppl_of):
                with pytest.raises(lmgate.LmgateError, match="did you mean 'words'"):
                    ppl_of("die", "word")
        """
    )
    outcome = measured.run().expect(1, failed=4, passed=1)
    outcome.says("'dye'", "'stride'", "too many positional arguments", "dataset: ")
    # One frame per error, the user's; nothing of the way down.
    outcome.is_silent_on("/pytest_lmgate/", "The above exception", "During handling")


def test_in_memory_models_and_rows_are_measured_and_cached_by_their_content(project: Project, models: Path) -> None:
    project.write(
        test_memory=f"""
            import pathlib
            import pytest
            import pytest_lmgate as lmgate

            MODELS = pathlib.Path({str(models)!r})

            @pytest.fixture(scope="session")
            def pair():
                import transformers
                kinds = (transformers.AutoModelForCausalLM, transformers.AutoTokenizer)
                return tuple(kind.from_pretrained(MODELS / "sure") for kind in kinds)

            @pytest.fixture
            def texts(): return [" ".join(f"w{{(i * 7 + j) % 50}}" for i in range(30)) for j in range(3)]

            def test_names_paths_pairs_and_pipelines_agree(ppl_of, pair):
                import transformers
                by_name = ppl_of("sure", "words")
                assert ppl_of(str(MODELS / "sure"), MODELS / "words.txt").cached
                assert ppl_of(pair, "words") == pytest.approx(by_name, rel=1e-6)
                pipeline = transformers.pipeline("text-generation", model=pair[0], tokenizer=pair[1])
                assert ppl_of(pipeline, "words").cached

            @pytest.mark.ppl_max(lmgate.fixture("pair"), lmgate.fixture("texts"), 1e300)
            def test_marker(): pass
        """
    )
    project.run().expect(0, passed=2)
    # The hashes of its texts begin with other random numbers.
    project.run("-k", "marker", "--lmgate-report=json:report.json", early=True).expect(0, passed=1)
    assert project.report()["gates"][0]["cached"], "another process finds them by their content alone"


def test_it_finds_what_a_session_measured_and_the_other_way_round(measured: Project) -> None:
    done = lmgate(measured.folder, "measure", "ppl", "die", "words")
    assert done.out.startswith("ppl 60 [60, 60], at 95%\n  of die on words, 399 tokens\n  protocol:sliding|")
    assert "from the cache (" in done.out
    (found,) = lmgate_json(measured.folder, "measure", "ppl", "die", "words", "--stride", "8")["measurements"]
    assert (found["value"], found["cached"], found["options"]) == (pytest.approx(FACES), False, {"stride": 8})
    measured.write(test_gate=GATE.replace("60.5", "60.5, stride=8"))
    measured.run("--lmgate-report=json:report.json").expect(0, passed=1)
    gate = measured.report()["gates"][0]
    assert (gate["cached"], gate["fingerprint"]) == (True, found["fingerprint"])


def test_a_list_is_a_sweep_with_a_row_each(measured: Project) -> None:
    done = lmgate(measured.folder, "measure", "bpb", "sure", "words", "--stride=8,16", "-o", "max_length=16,32")
    header, *rows = done.out.splitlines()
    assert header.split() == ["stride", "max_length", "bpb", "95%", "interval", "scored", "seconds"]
    assert [row.split()[:2] for row in rows] == [["8", "16"], ["8", "32"], ["16", "16"], ["16", "32"]]
    assert all(re.search(r"  \|[ -]*o[ -]*\|$", row) for row in rows), done.out
    assert len({row.split()[2] for row in rows}) == 4


def test_two_models_are_compared_with_all_their_figures(measured: Project) -> None:
    done = lmgate(measured.folder, "measure", "compare", "sure", "words", "--reference", "die")
    done.says("Mean KLD", "Same top p", "of sure on words")
