"""Fixtures ``ppl_of`` and ``bpb_of``: what they take, what they return, how a failed assertion reads."""

from pathlib import Path

from tests.end_to_end.projects import Project


def test_a_score_is_a_float_that_knows_its_noise_and_reads_well_in_a_failed_assertion(measured: Project) -> None:
    measured.write(
        test_scores="""
            import math, pickle
            import pytest
            import pytest_lmgate as lmgate

            def test_is_a_float(ppl_of, bpb_of):
                score = ppl_of("die", "words")
                assert isinstance(score, float) and isinstance(score, lmgate.Score)
                assert score == pytest.approx(60, rel=1e-6) and 59 < score <= 60.5
                assert score.n == 399 and score.unit == "token" and score.cached
                assert score.interval[0] <= score <= score.interval[1] and score.stderr < 1e-6
                assert "protocol:sliding|max_length:32|stride:16" in score.signature
                bits = bpb_of("die", "words")
                assert bits == pytest.approx(399 * math.log2(60) / bits.n) and bits.unit == "byte"
                again = pickle.loads(pickle.dumps(score))
                assert again == score and again.interval == score.interval

            def test_unit_and_average_need_no_model(ppl_of):
                per_word = ppl_of("die", "words", unit="word")
                assert per_word == pytest.approx(60, rel=1e-6) and per_word.cached
                assert ppl_of("die", "words", average="window").cached

            def test_fails(ppl_of):
                assert ppl_of("sure", "words") < 16.5
        """
    )
    outcome = measured.run("--lmgate-report=json:report.json").expect(1, passed=2, failed=1)
    outcome.says("assert ppl ", "sure on words, cached) < 16.5", "= ppl_of('sure', 'words')")
    outcome.says("measured in test_scores.py::test_fails: ppl_of ").is_silent_on("measured in test_scores.py::test_is")
    *_, measurement = measured.report()["measurements"]
    assert (measurement["test"], measurement["fixture"]) == ("test_scores.py::test_fails", "ppl_of")
    assert (measurement["model"], measurement["dataset"], measurement["cached"]) == ("sure", "words", True)


def test_whatever_cannot_be_measured_is_one_sentence_at_the_users_own_line(measured: Project) -> None:
    measured.write(
        test_scores="""
            import pytest
            import pytest_lmgate as lmgate

            def test_name(ppl_of):
                ppl_of("dye", "words")

            def test_argument(ppl_of):
                ppl_of("die", "words", strid=8)

            def test_limit_is_for_markers(ppl_of):
                ppl_of("die", "words", 60)

            def test_type(ppl_of):
                ppl_of("die", 3)

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
                model = transformers.AutoModelForCausalLM.from_pretrained(MODELS / "sure")
                return model, transformers.AutoTokenizer.from_pretrained(MODELS / "sure")

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
