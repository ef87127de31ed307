#!/usr/bin/env bash
# Pipelines against PyTorch: rows of schedules, losses and gradients; needs a Python with torch of 2025 or later.
. "$(dirname "$0")/begin.sh"
begin 'pipelines beside PyTorch' 'from torch.distributed.pipelining import ScheduleDualPipeV' 'torch.distributed.pipelining'
compile tests/interop/pipeline_parity.c -o "$tmp/parity"
compare 600 tests/interop/test_pipeline_parity.py "$tmp/parity"
