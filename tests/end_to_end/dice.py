"""A project whose models are fair dice (see `tests.engines.fair_die`): each load is noted, and no torch is needed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from tests.end_to_end.projects import Project

# A die whose file says how much memory it takes, what a batch costs, and after how many batches its process is killed,
# or waits for as long as there is a file hold.txt.
_CONFTEST = """
    import dataclasses, json, os, pathlib, signal, sys, time

    sys.path.append(BACKENDS)
    import fair_die
    from pytest_lmgate.engines.base import Backend
    from pytest_lmgate.windows.tokens import TokenizerFacts
    from pytest_lmgate.measure import loop

    HERE = pathlib.Path(__file__).parent
    loop.SAVE_SECONDS = 0.0  # every partial result is kept at once

    def note(name, text):
        with (HERE / name).open("a") as file:
            file.write(text + "\\n")

    class Die(fair_die.Die):
        is_tried, rereads = True, False  # no batch but those of the measurement

        def score(self, requests):
            killed = HERE / "killed.txt"
            if self.facts.get("kills_after") == self.batches and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            while self.batches == self.facts.get("held_after") and (HERE / "hold.txt").exists():
                time.sleep(0.02)
            self.batches += 1
            time.sleep(self.facts.get("seconds", 0))
            return super().score(requests)

    class Dice(fair_die.Dice):
        def describe(self, entry):
            plain = super().describe(entry)
            facts = json.loads(entry.path(entry.spec.path).read_bytes())

            def load():
                note("loaded.txt", f"{os.environ.get('PYTEST_XDIST_WORKER', 'alone')} {entry.name} {entry.workers}")
                die = Die(facts["sides"])
                die.facts, die.batches = facts, 0
                return die

            tells = facts.get("tells_tokens", True)

            def tokenizer():
                if tells == "wrongly":
                    raise OSError("the tokenizer is gone")
                return Die(1).tokenizer

            return dataclasses.replace(
                plain,
                open=load,
                weight_bytes=facts.get("bytes", 0),
                tokenizer=tokenizer if tells else None,
            )

    def pytest_lmgate_backends():
        return [Dice()]
"""
TOO_LARGE_FOR_TWO = 10**18
"""Bytes of a model that is let into memory only alone."""


class DiceProject(Project):
    """A project with the datasets ``one``, ``two`` and ``three``, each of 640 tokens, and models by `models`."""

    @classmethod
    def at(cls, folder: Path) -> DiceProject:
        """Write the project."""
        project = cls(folder, "pytest")
        backends = str(Path(__file__).parents[1] / "engines")
        project.write(conftest=_CONFTEST.replace("BACKENDS", repr(backends)), pytest_ini="[pytest]\n")
        for name in ("one", "two", "three"):
            (folder / f"{name}.txt").write_text("".join(random.Random(name).choices("abcd ", k=640)))
        return project

    def models(self, **models: dict[str, float]) -> DiceProject:
        """Write lmgate.yaml with these models, of which each is a die of six sides unless said."""
        lines = ["models:"]
        for name, facts in models.items():
            (self.folder / f"{name}.die").write_text(json.dumps({"sides": 6, "name": name} | facts))
            lines.append(f"  {name}: {{path: {name}.die, batch_size: 4}}")
        lines += ["datasets:", *(f"  {name}: {{path: {name}.txt}}" for name in ("one", "two", "three"))]
        (self.folder / "lmgate.yaml").write_text("\n".join(lines) + "\n")
        return self

    def gates(self, gates: Sequence[tuple[str, str]]) -> DiceProject:
        """Add a gate of the perplexity of each of these models on a dataset."""
        self.add_gates(*(f"ppl_max: {{model: {model}, dataset: {data}, limit: 6.01}}" for model, data in gates))
        return self

    @property
    def loaded(self) -> list[str]:
        """The model of each load."""
        return [model for _, model, _ in self.loads]

    @property
    def loads(self) -> list[tuple[str, str, int]]:
        """Worker and model of each load, and how many workers share the processors."""
        file = self.folder / "loaded.txt"
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [(worker, model, int(workers)) for worker, model, workers in lines]
