#!/usr/bin/env bash
# Runs pytest with annotations, the step summary, and the reports that the comment is made of; ends as pytest ends.
set -euo pipefail

out=$RUNNER_TEMP/lmgate
cd -- "$IN_DIRECTORY"

set -- --lmgate-report github --lmgate-report 'markdown-append:$GITHUB_STEP_SUMMARY' \
    --lmgate-report "json:$out/report.json" --lmgate-report "markdown:$out/report.md"
if [[ $IN_REQUIRE_ALL == true ]]; then set -- "$@" --lmgate-require-all; fi

# Words as a shell splits them, without running anything.
if ! python -c '
import os, shlex, sys
sys.stdout.write("".join(f"{word}\0" for word in shlex.split(os.environ["IN_ARGUMENTS"])))
' >"$out/arguments"; then
    echo "::error title=lmgate::arguments: expected words quoted as in a shell; a quote is not closed"
    exit 2
fi
while IFS= read -r -d '' word; do set -- "$@" "$word"; done <"$out/arguments"

if [[ -n $IN_LABEL && $HEAD_REPOSITORY == "$GITHUB_REPOSITORY" ]] && python -c '
import json, os, sys
sys.exit(os.environ["IN_LABEL"] not in (json.loads(os.environ["LABELS"]) or []))
'; then
    set -- "$@" --lmgate-update --lmgate-force-update
    echo update=true >>"$GITHUB_OUTPUT"
fi

status=0
python -m pytest "$@" || status=$?
echo "$status" >"$out/status"
if [[ -e $out/report.json ]]; then
    echo "report=$out/report.json" >>"$GITHUB_OUTPUT"
    # What pull requests are compared with: the step that keeps it runs for the default branch alone.
    if [[ $GITHUB_EVENT_NAME != pull_request ]]; then
        mkdir -p "$RUNNER_TEMP/lmgate-main"
        cp "$out/report.json" "$RUNNER_TEMP/lmgate-main/report.json"
    fi
fi
exit "$status"
