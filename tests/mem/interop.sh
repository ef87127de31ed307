#!/usr/bin/env bash
# Snapshots of cdp_mem.h, read by programs that are not ours: Python's pickle; PyTorch's _memory_viz.py (of an installed
# torch, or the file that MEMORY_VIZ_PY names); the viewer's own JavaScript under node (viewer_files.sh says where it
# comes from; browser.sh shows its page). What is not there is skipped, and says why. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
passed=0 failed=0
add() { # OUTPUT: of something that ends with "N passed, N failed"
    local p f
    cat "$1"
    read -r p _ f _ <<< "$(grep -aE '^[0-9]+ passed, [0-9]+ failed$' "$1" | tail -n 1)"
    passed=$((passed + ${p:-0})) failed=$((failed + ${f:-1}))
}

mkdir "$tmp/dumps"
if ! ${CC:-gcc} -O0 -std=gnu11 -fno-omit-frame-pointer -Wall -Wextra -Wno-misleading-indentation -I. -Itests tests/mem/dumps.c -o "$tmp/make_dumps" -pthread -lm ||
    ! "$tmp/make_dumps" "$tmp/dumps" > "$tmp/out" 2>&1; then
    cat "$tmp/out"
    echo '0 passed, 1 failed'
    exit 1
fi

py=${PYTHON:-python3}
[ -z "${PYTHON:-}" ] && [ -x /usr/bin/python3 ] && /usr/bin/python3 -c 'import torch' 2> /dev/null && py=/usr/bin/python3
viz=${MEMORY_VIZ_PY:-}
if ! command -v $py > /dev/null; then
    echo 'SKIP pickle and _memory_viz.py: there is no python3'
else
    [ -n "$viz" ] || viz=$($py -c 'import os, torch; print(os.path.join(os.path.dirname(torch.__file__), "cuda", "_memory_viz.py"))' 2> /dev/null)
    [ -n "$viz" ] && [ ! -f "$viz" ] && viz=
    [ -n "$viz" ] || echo 'SKIP _memory_viz.py: no torch here (python3-torch), and MEMORY_VIZ_PY names no file'
    $py tests/mem/interop.py "$tmp/dumps" ${viz:+"$viz"} > "$tmp/out" 2>&1
    add "$tmp/out" | grep -av '^[0-9]* passed'
    add "$tmp/out" > /dev/null
fi

if ! command -v node > /dev/null; then echo 'SKIP the viewer: there is no node'
elif ! why=$(bash tests/mem/viewer_files.sh "$tmp/viewer.js"); then echo "SKIP the viewer: $why"
else
    timeout 100 node tests/mem/viewer.mjs "$tmp/viewer.js" "$tmp/dumps" > "$tmp/out" 2>&1
    add "$tmp/out" | grep -av '^[0-9]* passed'
    add "$tmp/out" > /dev/null
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]
