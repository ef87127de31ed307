#!/usr/bin/env bash
# Random tensors of cdp_dtensor.h beside PyTorch: redistributions of random layouts, losses, attention and layers. The seed
# comes from the clock and is printed; SEED=n runs that one again. Needs a Python with torch (Debian: python3-torch).
. "$(dirname "$0")/begin.sh"
begin 'tensors beside PyTorch' 'import torch' torch
compile tests/interop/tensors.c -shared -fPIC -o "$tmp/tensors.so"
compare 300 tests/interop/test_tensors.py "$tmp/tensors.so" "${SEED:-$(date +%s)}" "${SECONDS_EACH:-4}"
