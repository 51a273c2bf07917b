#!/usr/bin/env bash
# Checks where the action runs, and says where the cache is, for the steps that restore and save it.
set -euo pipefail

rm -rf "$RUNNER_TEMP/lmgate" "$RUNNER_TEMP/lmgate-main"  # of an earlier call in this job
mkdir -p "$RUNNER_TEMP/lmgate"

# What has no name is called by its values in the job's matrix. A cache's key has no commas.
python -c '
import json, os
name = os.environ["IN_NAME"] or " ".join(map(str, (json.loads(os.environ["MATRIX"]) or {}).values()))
print("name=" + " ".join(name.replace(",", " ").split()))
' >>"$GITHUB_OUTPUT"

fail() {
    echo "::error title=lmgate::$1"
    exit 2
}

if [[ $GITHUB_EVENT_NAME == pull_request_target ]]; then
    fail "pull_request_target would run a stranger's code with the token of this repository: use pull_request"
fi
cd -- "$IN_DIRECTORY" || fail "working-directory: expected a folder of the checkout (is actions/checkout a step before?)"
python -m pytest_lmgate.cli --version ||
    fail "pytest-lmgate is not installed for the python of this job: install it in a step before"

# A runner that has LMGATE_CACHE keeps its cache itself. actions/cache takes a path relative to the checkout.
if [[ -z ${LMGATE_CACHE:-} ]]; then
    python -m pytest_lmgate.cli cache ls --json >"$RUNNER_TEMP/lmgate/cache.json"
    python -c '
import json, os, sys
folder = json.load(open(sys.argv[1]))["folder"]
print("cache=" + os.path.relpath(folder, os.environ["GITHUB_WORKSPACE"]))
' "$RUNNER_TEMP/lmgate/cache.json" >>"$GITHUB_OUTPUT"
fi
