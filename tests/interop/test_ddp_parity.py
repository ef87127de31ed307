"""The training steps of ddp_parity.c with PyTorch's own DistributedDataParallel over Gloo; compares every gradient.

test_ddp_parity.py PROGRAM    PROGRAM is the compiled ddp_parity.c. Ends with "N passed, N failed"."""
import datetime
import os
import socket
import struct
import subprocess
import sys
import time
import warnings

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

SHAPES = [(6, 8), (3,), (2, 3)]
SETUPS = ["plain", "whole", "unused", "static", "fp16", "powersgd", "join", "join_effective"]


def value(setup, step, rank, i, k):
    v = ((step * 7 + rank * 13 + i * 5 + k * 3 + 1) * 2654435761 & 0xFFFFFFFF) >> 8
    return v % 65 - 32 if setup == "whole" else (v - 8388608) / 16777216.0


def used(setup, step, rank, i):
    if setup == "static":
        return i != 2
    if setup != "unused":
        return True
    return not (step % 4 == 1 and (i == 2 or (i == 1 and rank == 1))) and not (step % 4 == 3 and i == 0 and rank == 0)


class Model(torch.nn.Module):
    """The gradient of parameter i is exactly what it is multiplied by."""

    def __init__(self):
        super().__init__()
        self.p = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(s)) for s in SHAPES])

    def forward(self, factors):
        return sum((p * f).sum() for p, f in zip(self.p, factors) if f is not None)


def factors(setup, step, rank):
    return [
        torch.tensor([value(setup, step, rank, i, k) for k in range(torch.Size(s).numel())], dtype=torch.float32).reshape(s) if used(setup, step, rank, i) else None
        for i, s in enumerate(SHAPES)
    ]


def bits(t):
    return " ".join("%08x" % struct.unpack("<I", struct.pack("<f", x))[0] for x in t.flatten().tolist())


def step_of(setup, ddp, step, rank, world, out):
    if setup not in ("plain", "whole"):
        for p in ddp.parameters():
            if p.grad is not None:
                p.grad.zero_()
    if setup in ("plain", "whole") and step % 3 == 1:
        with ddp.no_sync():
            ddp(factors(setup, step, rank)).backward()
    else:
        ddp(factors(setup, step, rank)).backward()
    for i, p in enumerate(ddp.module.p):
        grad = p.grad if p.grad is not None else torch.zeros(SHAPES[i])
        out.write("%s%d %d %d %d %s\n" % (setup, world, step, rank, i, bits(grad)))


def run(rank, world, port, setup, path):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=datetime.timedelta(seconds=30))
    ddp = DistributedDataParallel(Model(), find_unused_parameters=setup == "unused", static_graph=setup == "static")
    if setup == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if setup == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    with open("%s.%d" % (path, rank), "w") as out:
        if setup.startswith("join"):
            with ddp.join(divide_by_initial_world_size=setup == "join"):
                for step in range(4 if rank else 2):
                    step_of(setup, ddp, step, rank, world, out)
        else:
            for step in range(6):
                step_of(setup, ddp, step, rank, world, out)
        out.flush()
        os._exit(0)  # leaving in an orderly way sometimes hangs with this Gloo


def first_q():
    """What PowerSGDState of seed 0 draws for its first matrix of 8 columns."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(numpy.random.RandomState(0).randint(1_000_000_000))
        return bits(torch.randn(1, 8, 1)).split()


def samples():
    for c in range(64):
        size, ranks = [1, 7, 10, 33][c % 4], 1 + c // 4 % 4
        for rank in range(ranks):
            s = torch.utils.data.distributed.DistributedSampler(range(size), ranks, rank, shuffle=c // 16 % 2 == 1, seed=c, drop_last=c // 32 % 2 == 1)
            s.set_epoch(c % 3)
            try:
                got = list(s)
            except Exception:  # less than one sample for each rank
                got = []
            yield "sampler %d %d 0 %s" % (c, rank, " ".join(map(str, got)))


def table(lines):
    return {tuple(f[:4]): f[4:] for f in (line.split() for line in lines) if len(f) >= 4 and f[1].isdigit()}


def same(name, a, b):
    if a == b:
        return True
    if not name.startswith("powersgd") or len(a) != len(b):
        return False
    x, y = ([struct.unpack("<f", struct.pack("<I", int(w, 16)))[0] for w in v] for v in (a, b))
    return all(abs(p - q) < 1e-5 * (1 + abs(p)) for p, q in zip(x, y))  # the order of its sums is its own


def lines_of(setup, path):
    """What PyTorch's ranks say; None when they did not all come to their end within half a minute."""
    world = 4 if setup == "whole" else 2
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    processes = [mp.get_context("spawn").Process(target=run, args=(rank, world, port, setup, path)) for rank in range(world)]
    for p in processes:
        p.start()
    limit = time.monotonic() + 30
    for p in processes:
        p.join(max(0, limit - time.monotonic()))
    good = all(p.exitcode == 0 for p in processes)
    for p in processes:
        p.kill()
        p.join()
    return [line for rank in range(world) for line in open("%s.%d" % (path, rank)).read().splitlines()] if good else None


def main():
    tmp = sys.argv[2]
    theirs, skipped = list(samples()), []
    for setup in SETUPS:
        got = lines_of(setup, "%s/%s" % (tmp, setup)) or lines_of(setup, "%s/%s" % (tmp, setup))
        if got is None:
            skipped.append(setup)
            print("SKIP %s: PyTorch's side did not come to its end" % setup)
        theirs += got or []
    ours = subprocess.run([sys.argv[1]] + first_q(), stdout=subprocess.PIPE, universal_newlines=True, timeout=120)
    a, b = table(ours.stdout.splitlines()), table(theirs)
    passed = failed = 0
    for name in sorted({k[0] for k in a} | {k[0] for k in b}):
        if name[:-1] in skipped:
            continue
        keys = sorted({k for k in a if k[0] == name} | {k for k in b if k[0] == name})
        wrong = [k for k in keys if k not in a or k not in b or not same(name, a[k], b[k])]
        if wrong or ours.returncode:
            failed += 1
            print("not ok %s: %d of %d differ, first %s" % (name, len(wrong), len(keys), " ".join(wrong[0]) if wrong else ours.stdout[-500:]))
            if wrong:
                print("    ours   %s\n    theirs %s" % (a.get(wrong[0]), b.get(wrong[0])))
        else:
            passed += 1
            print("ok %s (%d)" % (name, len(keys)))
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
