#!/usr/bin/env bash
# cdp_optim_update() beside torch.optim, six steps each; needs a Python with torch (Debian: python3-torch).
set -u
cd "$(dirname "$0")/../.." || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
python=
for p in python3 /usr/bin/python3; do
    "$p" -c 'import torch.optim' > /dev/null 2>&1 && python=$p && break
done
if [ -z "$python" ]; then
    echo 'SKIP optimizers with PyTorch: no Python here has torch'
    echo '0 passed, 0 failed'
    exit 0
fi
if ! ${CC:-gcc} -O2 -std=gnu11 -shared -fPIC -I. tests/interop/optimizers.c -o "$tmp/optimizers.so" -pthread -lm; then
    echo '0 passed, 1 failed'
    exit 1
fi
timeout 120 "$python" tests/interop/test_optimizers.py "$tmp/optimizers.so"
rc=$?
[ $rc -lt 2 ] || echo "0 passed, 1 failed"
exit $rc
