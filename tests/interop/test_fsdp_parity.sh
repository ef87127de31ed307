#!/usr/bin/env bash
# Sharded training against PyTorch: losses and parameters; needs a Python with torch (Debian: python3-torch).
. "$(dirname "$0")/begin.sh"
begin 'sharded training beside PyTorch' 'import torch' 'torch'
compile tests/interop/fsdp_parity.c -o "$tmp/parity"
compare 120 tests/interop/test_fsdp_parity.py "$tmp/parity"
