#!/usr/bin/env bash
# cdp_optim_update() beside torch.optim, six steps each; needs a Python with torch (Debian: python3-torch).
. "$(dirname "$0")/begin.sh"
begin 'optimizers with PyTorch' 'import torch.optim' torch
compile tests/interop/optimizers.c -shared -fPIC -o "$tmp/optimizers.so"
compare 120 tests/interop/test_optimizers.py "$tmp/optimizers.so"
