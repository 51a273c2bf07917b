"""``lmgate schema``: the JSON Schema of lmgate.yaml, by which an editor completes and checks its keys."""

from __future__ import annotations

__all__ = ["schema"]

from pytest_lmgate.cli.output import AsJson, show


def schema(as_json: AsJson = False) -> None:
    """Print the JSON Schema of lmgate.yaml, for editors."""
    from pytest_lmgate.spec.json_schema import json_schema

    del as_json  # it is JSON either way
    show(json_schema(), "", as_json=True)
