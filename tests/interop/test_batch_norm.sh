#!/usr/bin/env bash
# cdp_batch_norm of several ranks beside torch.nn.BatchNorm1d and 2d on the joined batch; needs a Python with torch
# (Debian: python3-torch).
. "$(dirname "$0")/begin.sh"
begin 'batch norm with PyTorch' 'import torch.nn' torch
compile tests/interop/batch_norm.c -shared -fPIC -o "$tmp/batch_norm.so"
compare 120 tests/interop/test_batch_norm.py "$tmp/batch_norm.so"
