#!/usr/bin/env bash
# DDP against PyTorch's own, gradient by gradient; needs a Python with torch (Debian: python3-torch) and Gloo.
set -u
cd "$(dirname "$0")/../.." || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
python=
for p in python3 /usr/bin/python3; do
    "$p" -c 'import sys, numpy, torch.distributed as d; sys.exit(not d.is_gloo_available())' > /dev/null 2>&1 && python=$p && break
done
if [ -z "$python" ]; then
    echo 'SKIP parity with PyTorch: no Python here has torch with Gloo'
    echo '0 passed, 0 failed'
    exit 0
fi
if ! ${CC:-gcc} -O2 -std=gnu11 -I. -Itests tests/interop/ddp_parity.c -o "$tmp/parity" -pthread -lm; then
    echo '0 passed, 1 failed'
    exit 1
fi
GLOG_minloglevel=2 timeout 300 "$python" tests/interop/test_ddp_parity.py "$tmp/parity" "$tmp"
rc=$?
[ $rc -lt 2 ] || echo "0 passed, 1 failed"
exit $rc
