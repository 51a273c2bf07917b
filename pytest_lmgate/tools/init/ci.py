"""``lmgate init --ci``: the file that runs the gates of this project in a CI system."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import typer

from pytest_lmgate.cli.console import flow, note, root, show
from pytest_lmgate.errors import ConfigError
from pytest_lmgate.settings.options import FILE_NAME
from pytest_lmgate.version import __version__

REPOSITORY = "pytest-lmgate/pytest-lmgate"  # of the action; pyproject.toml has the whole address

# The file's name, and its text. Names in braces are filled in; those that a user chose are YAML already.
_FILES = {
    "github": """\
.github/workflows/lmgate.yml
name: Model gates
on: {{push: {{branches: [main, master]}}, pull_request: {{}}}}
permissions: {{contents: read, pull-requests: write}}
jobs:
  gates:
    runs-on: ubuntu-latest
    steps:
      - {{uses: actions/checkout@v4, with: {{lfs: true}}}}
      - {{uses: actions/setup-python@v5, with: {{python-version: "{python}"}}}}
      - run: {install}
      - {{uses: {action}, with: {{working-directory: {folder}}}}}
""",
    "gitlab": """\
.gitlab-ci.yml
lmgate:
  image: python:{python}
  cache: {{key: lmgate, paths: [{cache}], when: always}}
  script:
    - {install}
    - {pytest}
  artifacts: {{when: always, paths: [{report}], reports: {{junit: {junit}, metrics: {metrics}}}}}
""",
    "azure": """\
azure-pipelines.yml
trigger: [main, master]
pool: {{vmImage: ubuntu-latest}}
steps:
  - {{task: UsePythonVersion@0, inputs: {{versionSpec: "{python}"}}}}
  - {{task: Cache@2, inputs: {{key: lmgate | "$(Build.BuildId)", restoreKeys: lmgate, path: {cache}}}}}
  - script: {install}
  - script: {pytest}
  - {{task: PublishTestResults@2, condition: always(), inputs: {{testResultsFiles: {junit}}}}}
  - {{publish: {report}, artifact: lmgate, condition: always()}}
""",
    "buildkite": """\
.buildkite/pipeline.yml
steps:
  - label: Model gates
    plugins:
      - cache#v1.10.0: {{path: {cache}, restore: pipeline, save: pipeline, force: true}}
    commands:
      - {install}
      - {pytest}
    artifact_paths: [{report}, {junit}]
""",
}
_KEPT = {"cache": ".lmgate_cache", "report": "report.json", "junit": "junit.xml", "metrics": "metrics.txt"}
_PYTEST = (
    "pytest --lmgate-require-all --lmgate-cache .lmgate_cache --lmgate-report json:report.json "
    "--lmgate-report openmetrics:metrics.txt --junitxml junit.xml"
)


def write_ci_file(service: str, *, as_json: bool) -> None:
    """Write the file of a CI system into the repository's root, unless it exists."""
    if service not in _FILES:
        raise typer.BadParameter(f"--ci: expected one of {', '.join(_FILES)}; got {service!r}")
    here = root().start
    top = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
    (name, _, template), folder = _FILES[service].partition("\n"), here.relative_to(top)
    files = [each / "requirements.txt" for each in (folder, Path()) if (top / each / "requirements.txt").is_file()]
    wanted = f"-r {shlex.quote(files[0].as_posix())}" if files else f"pytest-lmgate=={__version__}"
    change = "" if here == top else f"cd {shlex.quote(folder.as_posix())} && "
    text = "# Written by `lmgate init --ci`; docs/ci.md of pytest-lmgate explains it.\n" + template.format(
        **{key: flow((folder / path).as_posix()) for key, path in _KEPT.items()},
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        install=flow(f"python -m pip install {wanted}"),
        action=f"{REPOSITORY}@v{__version__}",
        folder=flow(folder.as_posix()),
        pytest=flow(change + _PYTEST),
    )
    file = top / name
    if os.path.lexists(file):
        raise ConfigError(f"{file} exists; lmgate init overwrites nothing: add to it what is wanted of\n\n{text}")
    from pytest_lmgate.cache.files import write_durably

    try:
        write_durably(file, text.encode())
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
    if not (here / FILE_NAME).exists():
        note(f"there is no {FILE_NAME} in {here} yet, and a run without any gate is red: `lmgate init` writes one")
    show({"files": [name]}, f"written: {file}\nCommit it, and look at its first run.", as_json=as_json)
