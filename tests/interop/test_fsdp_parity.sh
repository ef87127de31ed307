#!/usr/bin/env bash
# Sharded training against PyTorch (fully_shard, ZeroRedundancyOptimizer): losses and parameters; needs a Python with torch (Debian: python3-torch).
. "$(dirname "$0")/begin.sh"
begin 'sharded training beside PyTorch' 'import torch' 'torch'
compile tests/interop/fsdp_parity.c -o "$tmp/parity"
compare 400 tests/interop/test_fsdp_parity.py "$tmp/parity"
