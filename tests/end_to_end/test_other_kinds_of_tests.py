"""Gates on tests that another plugin makes: of no function at all, or of functions that no Python file holds."""

import textwrap

from tests.end_to_end.dice import DiceProject
from tests.end_to_end.projects import marked

KINDS = """
    import pytest

    class Line(pytest.Item):
        def runtest(self): pass

    class Lines(pytest.File):
        def collect(self):
            for name in self.path.read_text().split():
                item = Line.from_parent(self, name=name)
                item.add_marker(pytest.mark.ppl_max(MODEL, "one", 5.9))
                yield item

    class Notebook(pytest.Module):
        def _getobj(self):
            import types
            made, text = types.ModuleType("notebook"), self.path.read_text().replace("%% ", "    ")
            exec(compile(text, str(self.path), "exec"), made.__dict__)
            return made

    def pytest_collect_file(file_path, parent):
        if file_path.suffix == ".list":
            return Lines.from_parent(parent, path=file_path)
        if file_path.suffix == ".cells":
            return Notebook.from_parent(parent, path=file_path)
"""


def kinds(dice: DiceProject, model: str = "'red'") -> DiceProject:
    with (dice.folder / "conftest.py").open("a") as file:
        file.write(textwrap.dedent(KINDS).replace("MODEL", model))
    return dice.models(red={})


def test_a_gate_on_an_item_without_a_function_is_judged_and_has_no_line(dice: DiceProject) -> None:
    (kinds(dice).folder / "checks.list").write_text("first")
    dice.run("--lmgate-report=json:report.json").expect(1, failed=1).says("red", "above the limit 5.9")
    (gate,) = dice.report()["gates"]
    assert (gate["test"], gate["verdict"]) == ("checks.list::first", "fail")
    assert gate.keys().isdisjoint({"file", "line"})


def test_an_item_without_fixtures_cannot_name_one(dice: DiceProject) -> None:
    dice = kinds(dice, "__import__('pytest_lmgate').fixture('model')")
    (dice.folder / "checks.list").write_text("first")
    dice.run().expect(4).says("lmgate.fixture('model'): a Line has no fixtures; name a model")


def test_a_gate_in_a_file_that_is_no_python_stands_in_the_line_of_its_test(dice: DiceProject) -> None:
    (kinds(dice).folder / "quality.cells").write_text(
        "import pytest\n\n@pytest.mark.ppl_max('red', 'one', 5.9)\ndef test_gate():\n%% pass\n"
    )
    dice.run("--lmgate-report=json:report.json").expect(1, failed=1)
    (gate,) = dice.report()["gates"]
    assert (gate["file"], gate["line"]) == (str(dice.folder / "quality.cells"), 3)


def test_the_tests_outside_of_rootdir_go_by_the_models_of_rootdir(dice: DiceProject) -> None:
    inner = dice.folder / "inner"
    inner.mkdir()
    dice.models(red={})
    for name in ("lmgate.yaml", "red.die", "one.txt", "conftest.py", "pytest.ini"):
        (dice.folder / name).rename(inner / name)
    (dice.folder / "outer").mkdir()
    (dice.folder / "outer" / "test_gate.py").write_text(marked(gate="ppl_max('red', 'one', 6.01)"))
    arguments = ("--rootdir=inner", "-c", "inner/pytest.ini", "-p", "inner.conftest", "outer/test_gate.py")
    dice.run(*arguments).expect(0, passed=1)
    (dice.folder / "outer" / "lmgate.yml").write_text("")
    dice.run(*arguments).expect(4).says("lmgate.yml is not read, since only a file named lmgate.yaml is")
