#!/usr/bin/env bash
# DDP against PyTorch's own, gradient by gradient; needs a Python with torch (Debian: python3-torch) and Gloo.
. "$(dirname "$0")/begin.sh"
begin 'parity with PyTorch' 'import sys, numpy, torch.distributed as d; sys.exit(not d.is_gloo_available())' 'torch with Gloo'
compile tests/interop/ddp_parity.c -o "$tmp/parity"
export GLOG_minloglevel=2
compare 300 tests/interop/test_ddp_parity.py "$tmp/parity" "$tmp"
