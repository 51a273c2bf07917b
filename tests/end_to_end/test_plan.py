"""``--lmgate-plan`` says what a session would measure and what the cache has; it loads no model and runs no test."""

import math
import re

from pytest_lmgate.cache.store import find_entries
from tests.end_to_end.dice import DiceProject
from tests.end_to_end.projects import Outcome, marked

BODY = marked(gate="ppl_max('red', 'one', 6.01)").replace("pass", "raise SystemExit('it ran')")


def plan(dice: DiceProject, *options: str) -> Outcome:
    loads = dice.loads
    outcome = dice.run("--lmgate-plan", *options).expect(0).says("lmgate: the plan; nothing was measured")
    assert dice.loads == loads
    return outcome


def rows(outcome: Outcome) -> dict[str, list[str]]:
    """Return the cells of each measurement by its name, with the state in front."""
    lines = outcome.out[outcome.out.index("nothing was measured") :].splitlines()
    cells = [re.split(r" {2,}", line) for line in lines if re.match(r"cached|to measure|\d+% done", line)]
    return {name: [state, *others] for state, name, *others in (each for each in cells if len(each) > 2)}


def test_a_measurement_that_several_gates_share_is_there_once_and_nothing_runs(dice: DiceProject) -> None:
    dice.models(red={"bytes": 2_500_000}, blue={}).gates([("red", "one"), ("blue", "one"), ("red", "two")])
    dice.write(test_body=BODY + "\n\ndef test_score(ppl_of): raise SystemExit('it ran')\n")
    more = "no_regression: {metric: ppl, model: red, dataset: two, tolerance: 1%, against: blue}"
    with (dice.folder / "lmgate.yaml").open("a") as file:
        file.write(f"  - bpb_max: {{model: red, dataset: one, limit: 9}}\n  - {more}\n")
    found = rows(outcome := plan(dice))
    assert {name: row[:4] for name, row in found.items()} == {
        "ppl, bpb: red on one": ["to measure", "3", "1,197", "2.5 MB"],
        "ppl: red on two": ["to measure", "2", "1,197", "2.5 MB"],
        "ppl: blue on one": ["to measure", "1", "1,197", "?"],
        "ppl: blue on two": ["to measure", "1", "1,197", "?"],
    }
    assert found["ppl: red on two"][-1] == "protocol:sliding|max_length:64|stride:32"
    outcome.says("4 measurements: 0 cached, 0 begun, 4 to be made", "tokens: 4,788", "time: unknown")
    outcome.says("red (2.5 MB), blue (?)", "1 test may measure by a fixture")
    dice.write(pytest_ini="[pytest]\nlmgate_report = json:from_ini.json\n")
    assert rows(plan(dice, "-n", "2", "--lmgate-report=json:plan.json")) == found
    assert not (dice.folder / "from_ini.json").exists()
    assert "lmgate.yaml::bpb_max[red-one]" in dice.report("plan.json")["gates"]  # for lmgate report --join
    dice.run("--lmgate-plan", "--lmgate-report=html:plan.html").expect(4).says("json:FILE alone, got html:plan.html")


def test_it_says_what_is_cached_and_begun_and_how_long_the_rest_may_take(dice: DiceProject) -> None:
    dice.models(red={"seconds": 0.2}, blue={"kills_after": 2}).gates([("red", "one"), ("red", "two"), ("blue", "one")])
    dice.run("-k", "red-one").expect(0, passed=1)
    (entry,) = find_entries(dice.cache)
    assert entry.facts["tokens"] == 1197
    expected = math.ceil(entry.facts["seconds"])  # the other text has as many tokens
    found = rows(outcome := plan(dice))
    assert found["ppl: red on one"][0] == "cached"
    assert found["ppl: red on two"][4] == f"0:00:0{expected}"
    assert found["ppl: blue on one"][4] == "?"
    outcome.says("3 measurements: 1 cached, 0 begun, 2 to be made", f"time: about 0:00:0{expected}")
    plan(dice, "--lmgate-refresh").says("3 measurements: 0 cached")
    assert dice.run("-k", "blue").code < 0
    assert re.fullmatch(r"\d+% done", rows(plan(dice))["ppl: blue on one"][0])
    dice.entries[0].write_bytes(b"")
    plan(dice).says("3 measurements: 0 cached", "a cache entry cannot be trusted")
    dice.run("-k", "red-one").expect(0, passed=1)
    (dice.folder / "red.die").write_text('{"sides": 6}')
    plan(dice, "--lmgate-explain-cache").says("ppl: red on one: die: ")


def test_what_cannot_be_known_before_the_tests_run_is_said(dice: DiceProject) -> None:
    models = {"red": {"tells_tokens": False}, "blue": {"tells_tokens": "wrongly"}}
    dice.models(**models).gates([("red", "one"), ("./gone.die", "one"), ("blue", "one")])
    dice.write(
        test_rows="""
            import pytest
            import pytest_lmgate as lmgate

            @pytest.fixture
            def rows(): raise SystemExit("it ran")

            def writes(prompts): raise SystemExit("it ran")

            @pytest.mark.ppl_max("red", lmgate.fixture("rows"), 6.01)
            @pytest.mark.bleu_min(writes, lmgate.fixture("rows"), 1)
            def test_rows(): pass

            @pytest.mark.skip(reason="not today")
            @pytest.mark.ppl_max("red", "two", 6.01)
            def test_skipped(): pass
        """
    )
    outcome = plan(dice)
    assert rows(outcome)["ppl: red on one"][2:5] == ["?", "?", "?"]
    outcome.says("1 measurement: 0 cached", "tokens: unknown", "ppl of red on rows: ")
    outcome.says("bleu of in-memory function on rows: ", "ppl of ./gone.die on one: ")
    outcome.says("ppl of blue on one: cannot be planned: OSError: the tokenizer is gone")


def test_what_cannot_be_collected_fails_a_plan_too(dice: DiceProject) -> None:
    dice.models(red={}).gates([("red", "one")]).write(test_broken="import no_such_module\n")
    dice.run("--lmgate-plan").expect(2).says("no_such_module").is_silent_on("the plan")
    # It is asked for on the command line alone.
    dice.run(env={"PYTEST_ADDOPTS": "--lmgate-plan"}).expect(4).says("--lmgate-plan: ", "PYTEST_ADDOPTS")
