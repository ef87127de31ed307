"""The same measurement as shards.c with PyTorch's fully_shard over Gloo; same options, same line."""
import argparse
import gc
import os
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--blocks", type=int, default=8)
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--forward-ms", type=float, default=10)
parser.add_argument("--steps", type=int, default=20)
o = parser.parse_args()
WARM, SHAPES = 3, [(3, 1), (1, 1), (4, 1), (1, 4)]
computed = 0.0


def compute(ms):
    start = time.monotonic()
    time.sleep(ms / 1000)
    global computed
    computed += time.monotonic() - start


class Layer(torch.autograd.Function):
    """Its passes take as long as they are told, and backward writes gradients."""

    @staticmethod
    def forward(ctx, x, *w):
        compute(o.forward_ms)
        ctx.shapes = [p.shape for p in w]
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        compute(2 * o.forward_ms)
        start = time.monotonic()
        grads = [torch.full(shape, 1e-3) for shape in ctx.shapes]
        global computed
        computed += time.monotonic() - start
        return (grad, *grads)


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.w = torch.nn.ParameterList([torch.nn.Parameter(torch.empty(a * width, b * width)) for a, b in SHAPES])

    def forward(self, x):
        return Layer.apply(x, *self.w)


def sharded(blocks, width):
    with torch.device("meta"):  # no rank ever has the whole
        model = torch.nn.Sequential(*[Block(width) for _ in range(blocks)])
    for block in model:
        fully_shard(block)
    fully_shard(model)
    model.to_empty(device="cpu")
    for p in model.parameters():
        torch.nn.init.zeros_(p)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def memory():
    with open("/proc/self/smaps_rollup") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("Pss:"))


def passes(model):
    global computed
    computed = 0.0
    start = time.monotonic()
    model(torch.ones(1, requires_grad=True)).sum().backward()
    took = time.monotonic() - start
    return took * 1e3, (took - computed) * 1e3


def one(model, optimizer):
    dist.barrier()
    took = passes(model)
    optimizer.step()
    optimizer.zero_grad()
    return took


def peak(model, optimizer):
    """The most memory during three steps: a thread looks all the time, because this process gives memory back in a step."""
    most, over = 0, threading.Event()

    def look():
        nonlocal most
        while not over.is_set():
            most = max(most, memory())
            time.sleep(0.001)

    watcher = threading.Thread(target=look)
    watcher.start()
    for _ in range(3):
        one(model, optimizer)
    over.set()
    watcher.join()
    return most


torch.set_num_threads(1)
dist.init_process_group("gloo")
small = sharded(2, 16)
for _ in range(3):  # what is loaded and made once is no memory of the model
    one(*small)
del small
gc.collect()
before = memory()
model, optimizer = sharded(o.blocks, o.width)
took = [one(model, optimizer) for _ in range(o.steps + WARM)][WARM:]
used = torch.tensor(float(peak(model, optimizer) - before))
dist.all_reduce(used)
step, exposed = (sorted(t[k] for t in took)[len(took) // 2] for k in (0, 1))
if dist.get_rank() == 0:
    print("torch step %.2f ms, exposed %.3f ms, memory %.1f MB" % (step, exposed, used.item() / dist.get_world_size() / 1e6), flush=True)
dist.barrier()
os._exit(0)
