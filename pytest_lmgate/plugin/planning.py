"""``--lmgate-plan``: says after collection what the session would measure, and runs no test."""

from __future__ import annotations

import pytest

from pytest_lmgate.plugin.collection import is_gated, is_measuring
from pytest_lmgate.plugin.hooks import GateHooks


class PlanHooks:
    """Registered by ``--lmgate-plan``; one process collects, even with ``-n``."""

    def __init__(self, config: pytest.Config, hooks: GateHooks) -> None:
        config.option.dist = "no"  # xdist then starts no workers
        self._hooks, self._lines = hooks, list[str]()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Plan instead of running, unless collection failed: pytest reports that."""
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            return None
        from pytest_lmgate.measure.plan import Plan
        from pytest_lmgate.plugin import options
        from pytest_lmgate.report.terminal import plan_lines
        from pytest_lmgate.report.text import counted

        plan, gates = Plan(options.cache_folder(session.config)), self._hooks.session()
        for item in filter(is_gated, session.items):
            if item.get_closest_marker("skip") is None:
                evaluator, evaluations = gates.evaluations(item)
                for what in evaluations:
                    plan.add(evaluator, what)
        self._lines = plan_lines(plan.measurements, [*plan.problems, *gates.cache_warnings, *self._hooks.left_out])
        if measuring := sum(map(is_measuring, session.items)):
            tests = counted(measuring, "test")
            self._lines.append(f"{tests} may measure by a fixture such as ppl_of, which is known only when they run")
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._lines:
            return
        from pytest_lmgate.errors import escape_controls

        terminalreporter.write_sep("=", "lmgate: the plan; nothing was measured")
        for line in self._lines:
            terminalreporter.write_line(escape_controls(line))
