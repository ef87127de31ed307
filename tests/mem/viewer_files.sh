#!/usr/bin/env bash
# viewer_files.sh FILE: writes PyTorch's memory viewer into FILE, as one script without imports and exports.
# MEMORY_VIZ_JS names MemoryViz.js; MEMORY_VIZ_FETCH=1 fetches it. Newer ones have a second file beside it,
# process_alloc_data.js. Fails, and says why in one line, if there is none.
set -u
from=${MEMORY_VIZ_JS:-}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
if [ -z "$from" ]; then
    [ -n "${MEMORY_VIZ_FETCH:-}" ] || { echo 'MEMORY_VIZ_JS names no file, and MEMORY_VIZ_FETCH is not set'; exit 1; }
    from=$tmp/MemoryViz.js
    url=https://raw.githubusercontent.com/pytorch/pytorch/main/torch/utils/viz
    curl -fsSL -m 60 -o "$from" $url/MemoryViz.js 2> "$tmp/why" || { echo "it cannot be fetched: $(tail -n 1 "$tmp/why")"; exit 1; }
    grep -q process_alloc_data.js "$from" && ! curl -fsSL -m 60 -o "$tmp/process_alloc_data.js" $url/process_alloc_data.js 2> "$tmp/why" &&
        { echo "its second file cannot be fetched: $(tail -n 1 "$tmp/why")"; exit 1; }
fi
[ -f "$from" ] || { echo "$from does not exist"; exit 1; }
second=$(dirname "$from")/process_alloc_data.js
if grep -q '^import .*process_alloc_data\|^ *elideRepeats.*from' "$from"; then
    [ -f "$second" ] || { echo "$second does not exist"; exit 1; }
else
    second=
fi
# shellcheck disable=SC2086
sed -E "/^'use strict';/d"'; /^import .*;$/d; /^import /,/;/d; /^export \{.*\}/d; /^export \{/,/\}/d; s/^export (async |function |const |let |class )/\1/' $second "$from" > "$1"
