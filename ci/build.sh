#!/usr/bin/env bash
# Builds the wheel and the sdist of a tag into dist/; the tag has to be that of the package's version.
#
#   ci/build.sh TAG [FOLDER]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' pytest_lmgate/version.py)
if [[ $1 != "v$version" ]]; then
    echo "expected the tag v$version, of pytest_lmgate/version.py; got $1" >&2
    exit 2
fi
if grep -q "^## \[$version\] - unreleased" CHANGELOG.md; then
    echo "CHANGELOG.md: $version is still \"unreleased\": write its date" >&2
    exit 2
fi
python -m hatchling build --directory "${2:-dist}"
