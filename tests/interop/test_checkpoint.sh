#!/usr/bin/env bash
# Files of cdp_checkpoint.h as the library of Hugging Face reads them, and the other way round; needs a Python with
# safetensors and numpy (pip install safetensors numpy).
. "$(dirname "$0")/begin.sh"
begin 'checkpoints with safetensors' 'import safetensors.numpy' safetensors.numpy
compile examples/22_checkpoint.c -o "$tmp/job"
compile tools/checkpoint.c -o "$tmp/checkpoint"
compare 120 tests/interop/test_checkpoint.py "$tmp/job" "$tmp/checkpoint" "$tmp"
