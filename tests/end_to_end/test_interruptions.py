"""A measurement that the user interrupts says what is kept, and the next run says where it goes on."""

from __future__ import annotations

import re
from pathlib import Path

from tests.end_to_end.projects import GATE, Project

# Ctrl-C after some batches of 4 windows, long before partial results are kept by time.
CTRL_C = """
    import os, signal

    def pytest_collection_finish():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which a process in the background starts without
        from pytest_lmgate.engine.scoring import TargetBoard

        plain, batches = TargetBoard.put, []

        def put(self, items, results):
            plain(self, items, results)
            batches.append(items)
            if len(batches) == int(os.environ.get("CTRL_C_AFTER", 0)):
                os.kill(os.getpid(), signal.SIGINT)

        TargetBoard.put = put
"""


def test_ctrl_c_keeps_what_was_measured_and_the_next_run_says_where_it_goes_on(project: Project, models: Path) -> None:
    project.write(
        conftest=CTRL_C,
        test_gate=GATE,
        lmgate_yaml=f"""
            models:
              die: {{path: {models}/die, batch_size: 4}}
            datasets:
              words: {{path: {models}/words.txt}}
        """,
    )
    stopped = project.run(env={"CTRL_C_AFTER": "3"}).expect(2)
    at = re.search(r"lmgate: die on words: interrupted at (\d+) %, which is kept; the next run goes on", stopped.text)
    assert at is not None, stopped.text
    assert 0 < int(at[1]) < 100
    assert len(project.partials) == 1
    resumed = project.run("--lmgate-explain-cache").expect(0, passed=1)
    resumed.says(f"lmgate: die on words: resumed at {at[1]} %", "miss, partial: an interrupted measurement goes on")
    project.run("--lmgate-refresh").expect(0, passed=1).is_silent_on("resumed at", "interrupted")
