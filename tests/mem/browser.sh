#!/usr/bin/env bash
# Snapshots of cdp_mem.h in PyTorch's viewer, in a real browser: for each way of recording, every event of every view is
# clicked, on every device, and no script may fail. Wanted: chromium (BROWSER names another one with the same options), the
# viewer (viewer_files.sh), and d3 (D3_JS names d3.min.js of version 7; else Debian's node-d3 is taken). What is not there is
# said, and all is skipped. `browser.sh FOLDER` shows the snapshots of a folder in place of its own. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
skip() {
    echo "SKIP the viewer in a browser: $1"
    echo '0 passed, 0 failed'
    exit 0
}
browser=${BROWSER:-$(command -v chromium || command -v chromium-browser || command -v google-chrome)}
[ -n "$browser" ] || skip 'there is no chromium (apt-get install chromium)'
d3=${D3_JS:-/usr/share/nodejs/d3/dist/d3.min.js}
[ -f "$d3" ] || skip "there is no d3: D3_JS names no file (apt-get install node-d3)"
why=$(bash tests/mem/viewer_files.sh "$tmp/viewer.js") || skip "no viewer: $why"

folder=${1:-$tmp/dumps}
if [ $# = 0 ]; then
    mkdir "$folder"
    if ! ${CC:-gcc} -O1 -std=gnu11 -fno-omit-frame-pointer -I. -Itests tests/mem/options.c -o "$tmp/options" -pthread -lm ||
        ! "$tmp/options" "$folder" > "$tmp/out" 2>&1; then
        cat "$tmp/out"
        echo '0 passed, 1 failed'
        exit 1
    fi
fi

page() { # FILE: a page that shows it
    printf '<!doctype html><html><head><meta charset="utf-8"></head><body>\n<script>'
    cat "$d3"
    printf '</script>\n<script>const snapshot_name = "%s", snapshot_base64 = "' "$(basename "$1")"
    base64 -w 0 "$1"
    printf '";</script>\n<script type="module">\n'
    sed -n '1,/^\/\/ ---- the viewer/p' tests/mem/browser.js
    sed 's#</script>#<\\/script>#g' "$tmp/viewer.js" # a comment has one
    sed '1,/^\/\/ ---- the viewer/d' tests/mem/browser.js
    printf '</script></body></html>\n'
}
passed=0 failed=0
for file in "$folder"/*.pickle; do
    page "$file" > "$tmp/page.html"
    said=$(timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$tmp/profile" \
        --window-size=1400,1000 --dump-dom "file://$tmp/page.html" 2> "$tmp/err" | sed -n 's/.*<pre id="said">\([^<]*\)<.*/\1/p')
    case $said in
    ok*) passed=$((passed + 1)) ;;
    *)
        failed=$((failed + 1))
        [ -n "$said" ] || said="not ok $(basename "$file"): the browser ended without a result: $(tail -n 1 "$tmp/err")"
        ;;
    esac
    echo "$said"
done
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]
