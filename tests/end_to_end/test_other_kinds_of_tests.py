"""Gates on tests that another plugin makes: of no function at all, or of functions that no Python file holds."""

import textwrap

from tests.end_to_end.dice import DiceProject

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
