#!/usr/bin/env bash
# Stores shared with PyTorch, both ways, and a job that torchrun starts; needs a Python with torch (Debian: python3-torch).
# STORE_PYTHON names another Python to try.
. "$(dirname "$0")/begin.sh"
passed=0 failed=0
begin 'the store against PyTorch' 'import torch.distributed' torch
compile tests/interop/store.c -o "$tmp/store"
compile examples/03_train_text.c -o "$tmp/train_text"
timeout 400 "$python" tests/interop/test_store.py "$tmp/store" > "$tmp/out.txt" 2> "$tmp/err.txt"
grep -v ' passed, ' "$tmp/out.txt"
line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$tmp/out.txt" | tail -n 1)
if [ -n "$line" ]; then read -r passed _ failed _ <<< "$line"; else failed=1; fi
[ "$failed" = 0 ] || tail -n 20 "$tmp/err.txt"

# torchrun 1.13 serves the store itself (TORCHELASTIC_USE_AGENT_STORE), and cannot start under Python 3.11 without its logs redirected
port=$((20000 + RANDOM % 10000))
torchrun="$python -W ignore -m torch.distributed.run"
if timeout 240 $torchrun --nproc_per_node 4 --master_port $port --no_python --redirects 1 --tee 1 --log_dir "$tmp/log" \
    "$tmp/train_text" --steps 5 --layers 1 --width 32 --eval-bytes 512 --check cdp.h > "$tmp/torchrun.txt" 2>&1; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
    echo 'not ok torchrun'
    tail -n 30 "$tmp/torchrun.txt"
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
