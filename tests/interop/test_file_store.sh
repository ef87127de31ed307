#!/usr/bin/env bash
# The file store and torch.distributed.FileStore on one file; needs a Python with torch (Debian: python3-torch).
. "$(dirname "$0")/begin.sh"
begin 'file store with PyTorch' 'import torch.distributed as d; d.FileStore' torch.distributed.FileStore
compile tests/interop/file_store.c -o "$tmp/user"
compare 120 tests/interop/test_file_store.py "$tmp/user" "$tmp"
