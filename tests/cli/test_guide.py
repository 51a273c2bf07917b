"""The guides name every command, and no command that is not there."""

import re
from pathlib import Path

import typer

from pytest_lmgate.cli.app import app

GUIDES = Path(__file__).parents[2] / "docs"


def commands() -> set[str]:
    """Every command as it is typed after ``lmgate``."""
    group = typer.main.get_command(app)
    top = {name: group.get_command(None, name) for name in group.list_commands(None)}
    inner = {f"{name} {each}" for name, command in top.items() for each in getattr(command, "commands", ())}
    return {name for name, command in top.items() if not hasattr(command, "commands")} | inner


def test_every_command_is_in_a_guide_and_no_other() -> None:
    text = "\n".join(file.read_text(encoding="utf-8") for file in [*GUIDES.glob("*.md"), *GUIDES.glob("howto/*.md")])
    named = set(re.findall(r"(?:^\$ |`|^    )lmgate ((?:cache |baseline )?[a-z]+)", text, flags=re.M))
    assert named - {"cache", "baseline"} == commands()
