"""The programs of docs/howto/command_engine.md, which the tests run as they stand there."""

from pathlib import Path

from tests.docs.pages import ROOT, File, steps

PAGE = ROOT / "docs" / "howto" / "command_engine.md"
_LOADED = ".eval()\n"


def write_program(folder: Path, name: str, *, looks_ahead: bool = False) -> Path:
    """Write a program of the page; a causal model of transformers may be shown each token one too early."""
    (text,) = (step.text for step in steps(PAGE.read_text("utf-8")) if isinstance(step, File) and step.path == name)
    if looks_ahead:
        assert text.count(_LOADED) == 1
        wrapped = "from tests.models.looking_ahead import LookingAhead\nmodel = LookingAhead(model, 1)\n"
        text = text.replace(_LOADED, f"{_LOADED}sys.path.append({str(ROOT)!r})\n{wrapped}")
    (folder / name).write_text(text, "utf-8")
    return folder / name
