#!/usr/bin/env bash
# examples/27_gpt.c against PyTorch: losses of 20 steps and the weights after them, from the weights of its first checkpoint; needs a
# Python with torch (Debian: python3-torch).
. "$(dirname "$0")/begin.sh"
begin 'a GPT beside PyTorch' 'import torch' 'torch'
compile examples/27_gpt.c -o "$tmp/gpt"
compile tools/cdprun.c -o "$tmp/cdprun"
compare 300 tests/interop/test_gpt.py "$tmp/cdprun" "$tmp/gpt" "$tmp" README.md
