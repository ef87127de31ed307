"""The same measurement as ddp.c with PyTorch's DistributedDataParallel over Gloo; same options, same line."""
import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--backward-ms", type=float, default=100)
parser.add_argument("--bytes", type=int, default=25000000)
parser.add_argument("--bucket", type=int, default=5000000)
parser.add_argument("--params", type=int, default=25)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--busy", action="store_true")
o = parser.parse_args()


def work(seconds):
    if not o.busy:
        return time.sleep(seconds)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


class Layer(torch.autograd.Function):
    """Its backward takes as long as it is told, and hands over a gradient that is there already."""

    @staticmethod
    def forward(ctx, x, w, g):
        ctx.g = g
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        work(o.backward_ms / 1000 / o.params)
        return grad, ctx.g, None


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        n = o.bytes // 4 // o.params
        self.p = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(n)) for _ in range(o.params)])
        self.g = [torch.zeros(n) for _ in range(o.params)]

    def forward(self, x):
        for p, g in zip(self.p, self.g):
            x = Layer.apply(x, p, g)
        return x


torch.set_num_threads(1)
dist.init_process_group("gloo")
ddp = DistributedDataParallel(Model(), bucket_cap_mb=o.bucket / 1048576, gradient_as_bucket_view=True)
took = []
for step in range(o.steps + 3):
    loss = ddp(torch.ones(1, requires_grad=True)).sum()
    start = time.monotonic()
    loss.backward()
    dist.barrier()
    took.append(time.monotonic() - start)
took = sorted(took[3:])
if dist.get_rank() == 0:
    print("torch  step %7.1f ms (least %.1f), beyond backward %6.1f ms" % (took[len(took) // 2] * 1e3, took[0] * 1e3, took[len(took) // 2] * 1e3 - o.backward_ms), flush=True)
os._exit(0)
