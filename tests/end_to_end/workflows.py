"""A small runner of composite GitHub actions: it evaluates the expressions of `action.yml` and runs its scripts.

``actions/cache`` keeps folders by key, as GitHub does; ``gh`` is a program that keeps comments, labels and files in a
JSON file, and knows the calls that the scripts make, as the API answers them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.end_to_end.projects import Outcome, environment
from tests.warm import warm_python

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
BOT = "github-actions[bot]"

_GH = """\
#!{python}
import json, os, re, sys  # the others where they are needed, since they take as long to import as all the rest

def end(message):
    print(message, file=sys.stderr)
    raise SystemExit(1)

state_file = {state!r}
state = json.load(open(state_file))
if not os.environ.get("GH_TOKEN"):
    end("gh: set GH_TOKEN")
arguments = sys.argv[1:]
assert arguments.pop(0) == "api"
options = {{}}
while arguments:
    word = arguments.pop(0)
    if word in ("--silent", "--paginate"):
        options[word] = True
    elif word in ("--method", "--jq", "--input", "-F"):
        options[word] = arguments.pop(0)
    else:
        assert "path" not in options and not word.startswith("-"), word
        options["path"] = word
method, path = options.get("--method", "GET"), options["path"]
state["calls"].append([method, path])
json.dump(state, open(state_file, "w"))
if state["refuses"] and method != "GET":
    end("gh: Resource not accessible by integration (HTTP 403)")
body = None
if "-F" in options:
    key, _, file = options["-F"].partition("=@")
    assert key == "body"
    body = open(file, encoding="utf-8").read()
    assert len(body) <= 65536
page, query = path.partition("?")[::2]
if match := re.fullmatch(r"repos/o/r/issues/(\\d+)/comments", page):
    if method == "GET":
        assert options["--jq"] == ".[]" and options["--paginate"]
        for comment in state["comments"]:
            print(json.dumps(comment))
    else:
        assert method == "POST"
        user = {{"login": {bot!r}}}
        state["comments"].append({{"id": 100 + len(state["comments"]), "user": user, "body": body}})
elif match := re.fullmatch(r"repos/o/r/issues/comments/(\\d+)", page):
    assert method == "PATCH"
    (comment,) = [each for each in state["comments"] if each["id"] == int(match[1])]
    comment["body"] = body
elif match := re.fullmatch(r"repos/o/r/contents/(.+)", page):
    import base64, hashlib
    from urllib.parse import unquote
    name = unquote(match[1])
    known = state["files"].get(name)
    sha = None if known is None else hashlib.sha1(b"blob %d\\0" % len(known.encode()) + known.encode()).hexdigest()
    if method == "GET":
        assert unquote(query) == "ref=" + state["branch"] and options["--jq"] == ".sha"
        if sha is None:
            print('{{"message": "Not Found"}}')
            end("gh: Not Found (HTTP 404)")
        print(sha)
    else:
        request = json.load(open(options["--input"]))
        assert request["branch"] == state["branch"]
        if request.get("sha") != sha:
            end("gh: does not match (HTTP 409)")
        state["files"][name] = base64.b64decode(request["content"]).decode()
elif match := re.fullmatch(r"repos/o/r/issues/(\\d+)/labels/(.+)", page):
    assert method == "DELETE"
    from urllib.parse import unquote
    state["labels"].remove(unquote(match[2]))
else:
    end("gh: Not Found (HTTP 404): " + page)
json.dump(state, open(state_file, "w"))
"""


class GitHub:
    """A pull request, or pushes to main, of one repository ``o/r``, with its caches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._state, self._programs, self._caches = folder / "state.json", folder / "programs", folder / "caches"
        self._runs = 0
        for path in (folder, self._programs, self._caches):
            path.mkdir()
        state = {"comments": [], "labels": [], "files": {}, "branch": "a/b #1", "calls": [], "refuses": False}
        self._state.write_text(json.dumps(state))
        python = warm_python(environment(), "pytest")
        # What `-c` runs needs the standard library alone, which a new interpreter has sooner.
        plain = f"{sys.executable} -ISE"
        programs = {"python": f'#!/bin/sh\n[ "$1" = -c ] && exec {plain} "$@"\nexec "{python}" "$@"\n'}
        programs["gh"] = _GH.format(python=plain, state=str(self._state), bot=BOT)
        for name, text in programs.items():
            (self._programs / name).write_text(text)
            (self._programs / name).chmod(0o755)

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self._state.read_text())
        return state

    def change(self, **facts: Any) -> None:
        self._state.write_text(json.dumps(self.state | facts))

    @property
    def comments(self) -> list[str]:
        return [comment["body"] for comment in self.state["comments"]]

    @property
    def caches(self) -> list[str]:
        return sorted(path.name for path in self._caches.iterdir())

    def run(
        self,
        workspace: Path,
        *,
        event: str = "pull_request",
        head: str | None = "o/r",
        variables: Mapping[str, str] | None = None,
        is_same_job: bool = False,
        matrix: Mapping[str, Any] | None = None,
        **inputs: str,
    ) -> Run:
        """Run the action once, with inputs whose hyphens are underscores here; a job has a new machine."""
        self._runs += 1
        temp = self.folder / "temp"
        if not is_same_job:
            shutil.rmtree(temp, ignore_errors=True)
        temp.mkdir(exist_ok=True)
        given = {name.replace("_", "-"): value for name, value in inputs.items()}
        assert given.keys() <= ACTION["inputs"].keys()
        labels = [{"name": name} for name in self.state["labels"]]
        repo = None if head is None else {"full_name": head}
        request = {"number": 7, "labels": labels, "head": {"repo": repo}, "base": {"repo": {"full_name": "o/r"}}}
        facts: dict[str, Any] = {"repository": {"default_branch": "main"}}
        facts |= {"pull_request": request} if event.startswith("pull_request") else {}
        (temp / "event.json").write_text(json.dumps(facts))
        github = {
            "event": facts, "event_name": event, "repository": "o/r", "run_id": str(self._runs), "run_attempt": "1",
            "job": "gates", "token": "secret", "ref_name": "7/merge" if "pull" in event else "main",
        }  # fmt: skip
        env = environment() | {
            "PATH": f"{self._programs}{os.pathsep}{os.environ['PATH']}", "CI": "true", "GITHUB_ACTIONS": "true",
            "GITHUB_ACTION_PATH": str(ROOT), "GITHUB_EVENT_NAME": event, "GITHUB_EVENT_PATH": str(temp / "event.json"),
            "GITHUB_WORKSPACE": str(workspace), "GITHUB_REPOSITORY": "o/r", "GITHUB_WORKFLOW": "Quality",
            "GITHUB_JOB": "gates", "GITHUB_RUN_ID": str(self._runs), "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_HEAD_REF": self.state["branch"] if "pull" in event else "", "RUNNER_TEMP": str(temp),
            "GITHUB_STEP_SUMMARY": str(temp / "summary.md"), "GITHUB_OUTPUT": str(temp / "output"),
        } | dict(variables or {})  # fmt: skip
        inputs_of = {name: given.get(name, facts["default"]) for name, facts in ACTION["inputs"].items()}
        contexts = {
            "inputs": inputs_of, "github": github, "runner": {"os": "Linux", "temp": str(temp)}, "steps": {},
            "matrix": matrix,
        }  # fmt: skip
        run = Run(0, "", "")
        for step in STEPS:
            is_wanted = step.get("if", "success()")
            if ("always()" not in is_wanted and run.code) or not evaluate(is_wanted, contexts):
                continue
            if "uses" in step:
                self._cache(step, contexts, workspace)
                continue
            (temp / "output").write_text("")
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=workspace,
                env=env | {name: filled(text, contexts) for name, text in step["env"].items()},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            outputs = dict(line.split("=", 1) for line in (temp / "output").read_text().splitlines())
            contexts["steps"] |= {step["id"]: {"outputs": outputs}} if "id" in step else {}
            run = Run(run.code or done.returncode, run.out + done.stdout, run.err + done.stderr)
        outputs = {name: filled(output["value"], contexts) for name, output in ACTION["outputs"].items()}
        summary = temp / "summary.md"
        return dataclasses.replace(run, outputs=outputs, summary=summary.read_text() if summary.exists() else "")

    def _cache(self, step: dict[str, Any], contexts: Mapping[str, Any], workspace: Path) -> None:
        values = {name: filled(text, contexts) for name, text in step["with"].items()}
        path = workspace / values.pop("path")
        values = {name: text.replace("/", "_") for name, text in values.items()}  # a key is a folder's name here
        assert "," not in values["key"]
        kept = sorted(self._caches.iterdir(), key=lambda each: each.stat().st_mtime_ns)
        if step["uses"] == "actions/cache/save@v4":
            if path.exists():
                shutil.copytree(path, self._caches / values["key"])
                os.utime(self._caches / values["key"])
            return
        assert step["uses"] == "actions/cache/restore@v4"
        for prefix in values["restore-keys"].splitlines():
            if found := [each for each in kept if each.name.startswith(prefix)]:
                shutil.copytree(found[-1], path, dirs_exist_ok=True)
                return


@dataclasses.dataclass(frozen=True)
class Run(Outcome):
    """What a run of the action left; it is red with any code but 0."""

    outputs: dict[str, str] = dataclasses.field(default_factory=dict)
    summary: str = ""

    def expect(self, ok: bool) -> Run:  # type: ignore[override]
        assert (self.code == 0) is ok, self.text
        return self


def filled(text: str, contexts: Mapping[str, Any]) -> str:
    """Fill the expressions of a text in."""
    return re.sub(r"\$\{\{(.*?)\}\}", lambda match: str(evaluate(match[1].strip(), contexts)), str(text))


def evaluate(expression: str, contexts: Mapping[str, Any]) -> Any:
    """Return the value of an expression; one that this runner does not know is an error."""

    def read(name: str) -> Any:
        value: Any = contexts
        for key in name.split("."):
            if isinstance(value, list):
                value = value if key == "*" else [each[key] for each in value]
            else:
                value = (value or {}).get(key)
        return "" if value is None else value

    def token(match: re.Match[str]) -> str:
        word = match[0]
        if word.startswith("'"):
            return word
        if word.startswith("toJSON("):
            return repr(json.dumps(read(word.removeprefix("toJSON(").removesuffix(")")) or []))
        known = {"&&": " and ", "always()": "True", "success()": "True", "==": "==", "!=": "!=", " ": " "}
        return known[word] if word in known else repr(read(word))

    pattern = r"'[^']*'|toJSON\([^)]*\)|always\(\)|success\(\)|&&|==|!=| |[a-z][\w.*-]*"
    assert not re.sub(pattern, "", expression), expression
    return eval(re.sub(pattern, token, expression))
