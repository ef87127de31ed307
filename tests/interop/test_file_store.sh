#!/usr/bin/env bash
# The file store and torch.distributed.FileStore on one file; needs a Python with torch (Debian: python3-torch).
set -u
cd "$(dirname "$0")/../.." || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
python=
for p in python3 /usr/bin/python3; do
    "$p" -c 'import torch.distributed as d; d.FileStore' > /dev/null 2>&1 && python=$p && break
done
if [ -z "$python" ]; then
    echo 'SKIP file store with PyTorch: no Python here has torch.distributed.FileStore'
    echo '0 passed, 0 failed'
    exit 0
fi
if ! ${CC:-gcc} -O2 -std=gnu11 -I. tests/interop/file_store.c -o "$tmp/user" -pthread -lm; then
    echo '0 passed, 1 failed'
    exit 1
fi
timeout 120 "$python" tests/interop/test_file_store.py "$tmp/user" "$tmp"
rc=$?
[ $rc -lt 2 ] || echo "0 passed, 1 failed"
exit $rc
