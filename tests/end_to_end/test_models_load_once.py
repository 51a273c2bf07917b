"""A model is loaded once in a session, also where memory holds only one and the gates of several stand mixed."""

from __future__ import annotations

from tests.end_to_end.dice import TOO_LARGE_FOR_TWO, DiceProject

MIXED = [(model, data) for data in ("one", "two", "three") for model in ("red", "blue")]


def test_models_that_fit_beside_each_other_stay_in_memory(dice: DiceProject) -> None:
    tests = "\n".join(
        f"@pytest.mark.ppl_max('{model}', '{data}', 6.01)\ndef test_{model}_{data}(): pass" for model, data in MIXED
    )
    dice.models(red={}, blue={}).write(test_mixed=f"import pytest\n\n{tests}\n")
    dice.run().expect(0, passed=6)
    assert dice.loaded == ["red", "blue"]


def test_gates_of_a_file_run_model_by_model_so_that_each_is_loaded_once(dice: DiceProject) -> None:
    heavy = {"bytes": TOO_LARGE_FOR_TWO}
    dice.models(red=heavy, blue=heavy).gates([*MIXED, ("red", "one")])
    outcome = dice.run("-v").expect(0, passed=7)
    assert dice.loaded == ["red", "blue"]
    ran = [line.split("[")[1].split("]")[0] for line in outcome.out.splitlines() if " PASSED " in line]
    assert ran == ["red-one", "red-two", "red-three", "red-one#2", "blue-one", "blue-two", "blue-three"]


def test_tests_in_python_run_in_the_order_of_their_file(dice: DiceProject) -> None:
    dice.models(red={}, blue={}).write(
        test_trained="""
            import pathlib
            import pytest

            @pytest.mark.ppl_max("red", "one", 6.01)
            def test_before(): pass

            @pytest.mark.ppl_max("blue", "one", 6.01)
            def test_trains(): pathlib.Path("red.die").write_text('{"sides": 5}')

            @pytest.mark.ppl_max("red", "one", 5.01)
            def test_what_was_trained(): pass
        """
    )
    dice.run().expect(0, passed=3)
