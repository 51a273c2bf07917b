#!/usr/bin/env bash
# Commits the baseline that a labelled pull request has measured to its branch, and takes the label off: it accepts
# one model, not all that follow.
set -euo pipefail

out=$RUNNER_TEMP/lmgate
cd -- "$IN_DIRECTORY"
python -m pytest_lmgate.cli baseline show --json >"$out/baseline.json"
python -c '
import hashlib, json, os, pathlib, sys
from urllib.parse import quote

file = pathlib.Path(json.load(open(sys.argv[1]))["file"]).resolve()
path = file.relative_to(pathlib.Path(os.environ["GITHUB_WORKSPACE"]).resolve()).as_posix()
data = file.read_bytes()
print(file, quote(path), hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(), sep="\n")
print(quote(os.environ["GITHUB_HEAD_REF"], safe=""), quote(os.environ["IN_LABEL"], safe=""), sep="\n")
' "$out/baseline.json" >"$out/addresses"
{ read -r file; read -r path; read -r blob; read -r branch; read -r label; } <"$out/addresses"

contents="repos/$GITHUB_REPOSITORY/contents/$path"
before=$(gh api "$contents?ref=$branch" --jq .sha 2>/dev/null) || before=  # no such file yet
if [[ $before == "$blob" ]]; then
    echo "the branch has this baseline already"
else
    python -c '
import base64, json, os, sys
file, before = sys.argv[1:]
content = base64.b64encode(open(file, "rb").read()).decode()
request = {"message": "Accept the model of this pull request", "branch": os.environ["GITHUB_HEAD_REF"], "content": content}
json.dump(request | ({"sha": before} if before else {}), sys.stdout)
' "$file" "$before" >"$out/request.json"
    gh api --silent --method PUT "$contents" --input "$out/request.json" || {
        echo "::error title=lmgate::the baseline could not be committed: the job needs permissions: {contents: write}"
        exit 1
    }
fi
gh api --silent --method DELETE "repos/$GITHUB_REPOSITORY/issues/$PULL_REQUEST/labels/$label"
