#!/usr/bin/env bash
# Writes the one comment on the pull request: the first run posts it, each later one edits it. A hidden marker in its
# first line, and its author, tell which comment it is. A comment that cannot be written changes no verdict.
set -euo pipefail

if [[ $HEAD_REPOSITORY != "$GITHUB_REPOSITORY" ]]; then
    echo "no comment: the pull request is from a fork"
    exit 0
fi

out=$RUNNER_TEMP/lmgate
identity=$(printf '%s\n' "$GITHUB_WORKFLOW" "$GITHUB_JOB" "$IN_DIRECTORY" "$IN_NAME" | cksum | cut -d' ' -f1)
marker="<!-- lmgate: $identity -->"
run="$GITHUB_SERVER_URL/$GITHUB_REPOSITORY/actions/runs/$GITHUB_RUN_ID"

compared=
if [[ -e $out/report.json && -e $RUNNER_TEMP/lmgate-main/report.json ]]; then
    cp "$RUNNER_TEMP/lmgate-main/report.json" "$out/main.json"
    # 1 says that something is worse, which the comment shows; the gates alone decide.
    worse=0
    (cd "$out" && python -m pytest_lmgate.cli compare main.json report.json --markdown >compared.md) || worse=$?
    if ((worse <= 1)); then compared=$out/compared.md; fi
fi
python -c '
import pathlib, sys

marker, title, run, out, compared = sys.argv[1:]
out = pathlib.Path(out)
ended = (out / "status").read_text().strip() if (out / "status").exists() else ""
head, tail = f"{marker}\n\n### Model gates {title}".rstrip(), f"[The whole run]({run})\n"
if ended not in ("", "0", "1"):  # 1: a test failed
    words = {"2": "a test file could not be imported, or the run was interrupted", "5": "no tests were collected"}
    head += f"\n\n**pytest ended with exit code {ended}**" + (f": {words[ended]}" if ended in words else "")
if (out / "report.md").exists():
    report = (out / "report.md").read_text(encoding="utf-8")
    counts = report.partition("\n")[0] + " The table is too long for a comment."
    changes = pathlib.Path(compared).read_text(encoding="utf-8") if compared else ""
    if changes:
        changes = f"<details open><summary>Compared with the default branch</summary>\n\n{changes}\n</details>"
    bodies = [[changes, report], [changes, counts], [counts]]
else:
    bodies = [["**no verdict**: pytest wrote no report"]]
texts = ["\n\n".join([head, *filter(None, body), tail]) for body in bodies]
# GitHub refuses a comment of more than 65,536 characters.
fits = next(text for text in texts if len(text) <= 65_000 or text is texts[-1])
(out / "comment.md").write_text(fits, encoding="utf-8")
' "$marker" "$IN_NAME" "$run" "$out" "$compared"

write() {
    comments=repos/$GITHUB_REPOSITORY/issues
    gh api --paginate "$comments/$PULL_REQUEST/comments?per_page=100" --jq '.[]' >"$out/comments" || return
    ours=$(python -c '
import json, sys
comments = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
ours = [comment["id"] for comment in comments
        if comment["user"]["login"] == "github-actions[bot]" and comment["body"].startswith(sys.argv[2])]
print(*ours[:1])
' "$out/comments" "$marker") || return
    if [[ -n $ours ]]; then
        gh api --silent --method PATCH "$comments/comments/$ours" -F "body=@$out/comment.md"
    else
        gh api --silent --method POST "$comments/$PULL_REQUEST/comments" -F "body=@$out/comment.md"
    fi
}
write || echo "::warning title=lmgate::the comment could not be written: the job needs permissions: {pull-requests: write}"
