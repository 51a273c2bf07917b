"""Lets inspect_ai write logs of its mock model with two epochs: ``python write_inspect.py FOLDER``.

``old.eval`` and ``new.eval`` are two runs, the new one with more wrong answers; ``old.json`` and ``new.json`` are the
same runs in the other format. It needs inspect_ai alone, in an environment of its own.
The files in ``data/inspect`` were written so by inspect_ai 0.3.285.
"""

import sys
from pathlib import Path

from inspect_ai import Task, eval, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import read_eval_log, write_eval_log
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import f1, match
from inspect_ai.solver import generate

ROWS, EPOCHS = 6, 2


@task
def capitals() -> Task:
    """Ask for the capital of six countries."""
    pairs = zip(
        ("France", "Italy", "Spain", "Japan", "Peru", "Kenya"),
        ("Paris", "Rome", "Madrid", "Tokyo", "Lima", "Nairobi"),
        strict=True,
    )
    samples = [
        Sample(id=f"q{at}", input=f"Which city is the capital of {country}?", target=city,
               metadata={"category": "Europe" if at < 3 else "elsewhere"})
        for at, (country, city) in enumerate(pairs)
    ]  # fmt: skip
    return Task(dataset=MemoryDataset(samples), solver=[generate()], scorer=[match(), f1()], version=1)


def main() -> None:
    folder = Path(sys.argv[1])
    cities = ["Paris", "Rome", "Madrid", "Tokyo", "Lima", "Nairobi"]
    for name, wrong in (("old", {4}), ("new", {1, 4, 7, 10})):
        # One sample at a time, so that the outputs come in this order.
        answers = ["an answer" if at in wrong else cities[at % ROWS] for at in range(ROWS * EPOCHS)]
        outputs = [ModelOutput.from_content("mockllm/model", each) for each in answers]
        for output in outputs:  # else the tokens are counted by a vocabulary from the network
            output.usage = ModelUsage(input_tokens=8, output_tokens=1, total_tokens=9)
        model = get_model("mockllm/model", custom_outputs=outputs)
        log = eval(capitals(), model=model, epochs=EPOCHS, log_dir=str(folder / "logs"), display="none", temperature=0,
                   max_samples=1, max_connections=1, max_subprocesses=1)[0]  # fmt: skip
        assert log.status == "success", log.error
        log = read_eval_log(log.location)
        for suffix in ("eval", "json"):
            write_eval_log(log, str(folder / f"{name}.{suffix}"), format=suffix)


if __name__ == "__main__":
    main()
