#!/usr/bin/env bash
# Checkpoints that torch.distributed.checkpoint has written, read here and converted for torch.load(), and ours read there; needs a Python with torch and
# Gloo (and safetensors, for the second).
. "$(dirname "$0")/begin.sh"
begin 'checkpoints with torch' 'import sys, torch.distributed as d, torch.distributed.checkpoint, safetensors.torch; sys.exit(not d.is_gloo_available())' \
    'torch with Gloo, and safetensors'
compile examples/22_checkpoint.c -o "$tmp/job"
compile tools/checkpoint.c -o "$tmp/checkpoint"
export GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1
compare 300 tests/interop/test_checkpoint_torch.py "$tmp/job" "$tmp/checkpoint" "$tmp"
