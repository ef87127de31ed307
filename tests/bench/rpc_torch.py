"""The side of rpc.sh that PyTorch's RPC takes: rpc_torch.py memory|tcp

Two processes with TensorPipe: memory as PyTorch chooses on one host, tcp with its plain TCP alone.
Orders come as rpc.c says; BYTES is the length of the tensor that a call returns."""
import os
import sys
import time

kind = sys.argv[1]
port = os.getpid() % 20000 + 20000
child = os.fork()
import torch
import torch.distributed.rpc as rpc

torch.set_num_threads(1)
tensor = torch.ones(64 << 20, dtype=torch.uint8) if child == 0 else None


def result(size):
    return tensor[:size] if size else None


def start(rank):
    more = {"_transports": ["uv"], "_channels": ["basic"]} if kind == "tcp" else {}
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", rpc_timeout=600, **more)
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=2, rpc_backend_options=options)


def measure(op, size, ms):
    from_s = time.monotonic()
    until, n, flying = from_s + ms / 1000, 0, []
    while time.monotonic() < until or n < 3:
        if op == "call":
            rpc.rpc_sync("rank1", result, args=(size,))
        else:
            if len(flying) == 16:
                flying.pop(0).wait()
            flying.append(rpc.rpc_async("rank1", result, args=(size,)))
        n += 1
    for f in flying:
        f.wait()
    return (time.monotonic() - from_s) * 1e6 / n


if child == 0:
    start(1)
else:
    start(0)
    for line in sys.stdin:
        op, size, ms = line.split()
        print("%.3f" % measure(op, int(size), float(ms)) if op in ("call", "flight") else "-", flush=True)
rpc.shutdown()
