# What the scripts here begin with, and how they end; each sources this first.
# shellcheck shell=bash
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

# begin TITLE CODE WHAT: finds $python, a Python that runs CODE; if none has WHAT, says so and ends. STORE_PYTHON names
# another one to try.
begin() {
    for python in ${STORE_PYTHON:-} python3 /usr/bin/python3; do
        "$python" -W ignore -c "$2" > /dev/null 2>&1 && return
    done
    echo "SKIP $1: no Python here has $3"
    echo '0 passed, 0 failed'
    exit 0
}
# compile SOURCE ARGUMENT...
compile() {
    ${CC:-gcc} -O2 -std=gnu11 -I. -Itests "$@" -pthread -lm && return
    echo '0 passed, 1 failed'
    exit 1
}
# compare SECONDS SCRIPT ARGUMENT...: the script prints "N passed, N failed" and ends with 0 or 1, unless it breaks off.
compare() {
    timeout "$1" "$python" -W ignore "${@:2}"
    local rc=$?
    [ $rc -lt 2 ] || echo '0 passed, 1 failed'
    exit $rc
}
