"""The training steps of ddp_parity.c with PyTorch's own DistributedDataParallel and its own hooks over Gloo; compares every
gradient, the loss curves of a small net, the samples of DistributedSampler, and the bucket assignment.

test_ddp_parity.py PROGRAM FOLDER    PROGRAM is the compiled ddp_parity.c. Ends with "N passed, N failed"."""
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
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook, quantization_hooks
from torch.nn.parallel import DistributedDataParallel

SHAPES = [(6, 8), (3,), (2, 3)]
F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
POWERSGD = ["powersgd", "powersgd_rank2", "powersgd_f64", "powersgd_batched"]
CURVES = ["curve", "curve_fp16", "curve_quantize"]
SETUPS = [
    "plain", "plain_f64", "plain_f16", "unused", "unused_f64", "static", "sparse", "allreduce", "allreduce_f64", "allreduce_f16", "allreduce_bf16", "fp16", "fp16_f64",
    "fp16_wrapper", "bf16", "bf16_f64", "noop", "post_local", "quantize", "quantize_channel",
] + POWERSGD + CURVES  # fmt: skip
ALONE = ["join", "join_effective", "join_buffers"]  # in processes of their own: leaving join sometimes hangs with this Gloo


def dtype_of(setup):
    return F64 if setup.endswith("_f64") else BF16 if setup.endswith("_bf16") else F16 if setup.endswith("_f16") else F32


def mixed(step, rank, i, k):
    return ((step * 7 + rank * 13 + i * 5 + k * 3 + 1) * 2654435761 & 0xFFFFFFFF) >> 8


def value(setup, step, rank, i, k):
    v = mixed(step, rank, i, k)
    return v % 65 - 32 if setup == "whole" else (v - 8388608) / 16777216.0


def used(setup, step, rank, i):
    if setup == "static":
        return i != 2
    if not setup.startswith("unused"):
        return True
    return not (step % 4 == 1 and (i == 2 or (i == 1 and rank == 1))) and not (step % 4 == 3 and i == 0 and rank == 0)


class Model(torch.nn.Module):
    """The gradient of parameter i is exactly what it is multiplied by."""

    def __init__(self, dtype, buffer=False):
        super().__init__()
        if buffer:
            self.register_buffer("b", torch.zeros(2))
        self.p = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(s, dtype=dtype)) for s in SHAPES])

    def forward(self, factors):
        return sum((p * f).sum() for p, f in zip(self.p, factors) if f is not None)


class SparseModel(torch.nn.Module):
    """The same, but parameter 0 is an embedding of which three rows are looked up."""

    def __init__(self):
        super().__init__()
        self.e = torch.nn.Embedding(6, 8, sparse=True)
        self.q = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(s)) for s in SHAPES[1:]])
        self.p = [self.e.weight] + list(self.q)

    def forward(self, factors, at):
        return (self.e(at) * factors[0].flatten()[:24].reshape(3, 8)).sum() + sum((p * f).sum() for p, f in zip(self.q, factors[1:]))


def factors(setup, step, rank):
    return [
        torch.tensor([value(setup, step, rank, i, k) for k in range(torch.Size(s).numel())], dtype=F64).reshape(s).to(dtype_of(setup)) if used(setup, step, rank, i) else None
        for i, s in enumerate(SHAPES)
    ]


def bits(t):
    t = t.detach().contiguous().flatten()
    size = t.element_size()
    raw = bytes(t.view(torch.uint8).tolist()) if t.numel() else b""
    return " ".join(raw[k * size : (k + 1) * size][::-1].hex() for k in range(t.numel()))


def step_of(setup, ddp, step, rank, world, out):
    adds = setup.startswith("plain") or setup == "whole"
    if not adds:
        for p in ddp.parameters():
            p.grad = None if setup == "sparse" else p.grad
            if p.grad is not None:
                p.grad.zero_()
    if setup == "join_buffers":
        ddp.module.b.fill_(rank * 100 + step)
    f = factors(setup, step, rank)
    inputs = (f, torch.tensor([mixed(step, rank, 9, k) % 6 for k in range(3)])) if setup == "sparse" else (f,)
    if adds and step % 3 == 1:
        with ddp.no_sync():
            ddp(*inputs).backward()
    else:
        ddp(*inputs).backward()
    if setup == "join_buffers":  # as if it were parameter 9
        out.write("%s%d %d %d 9 %s\n" % (setup, world, step, rank, bits(ddp.module.b)))
    for i, p in enumerate(ddp.module.p):
        grad = p.grad if p.grad is not None else torch.zeros(SHAPES[i], dtype=p.dtype)
        out.write("%s%d %d %d %d %s\n" % (setup, world, step, rank, i, bits(grad.to_dense() if grad.is_sparse else grad)))


class Done:
    """A finished operation, for what Gloo does not do."""

    def __init__(self, tensors):
        self.future = torch.futures.Future()
        self.future.set_result(tensors)

    def get_future(self):
        return self.future

    def wait(self):
        return True


def patch():
    """Make the hooks run where they would not: bf16 over Gloo, quantization and batched PowerSGD without CUDA. Their own arithmetic stays."""
    all_reduce, all_gather, orthogonalize = dist.all_reduce, dist.all_gather, powerSGD_hook._orthogonalize

    def reduce_any(tensor, *args, **kwargs):
        if tensor.dtype != BF16:
            return all_reduce(tensor, *args, **kwargs)
        raw = tensor.view(torch.uint8)
        parts = [torch.empty_like(raw) for _ in range(dist.get_world_size())]
        all_gather(parts, raw)
        total = parts[0].view(BF16)
        for part in parts[1:]:
            total = total + part.view(BF16)
        tensor.copy_(total)
        return Done([tensor])

    def gather_now(out, tensor, group=None, async_op=False):
        all_gather(out, tensor, group=group)
        return Done([torch.stack(out)])

    dist.all_reduce = reduce_any
    dist.all_gather = gather_now
    powerSGD_hook._orthogonalize = lambda m, epsilon=0: orthogonalize(m if m.dim() == 3 else m.unsqueeze(0), epsilon)
    torch.nn.Module.cuda = lambda self, *args: self
    torch.Tensor.cuda = lambda self, *args, **kwargs: self


def hook_of(setup):
    d, name = default_hooks, setup.replace("_f64", "").replace("_bf16", "").replace("_f16", "").replace("curve_", "")
    if setup.startswith("powersgd"):
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2 if name == "powersgd_rank2" else 1, start_powerSGD_iter=2)
        return state, powerSGD_hook.batched_powerSGD_hook if name == "powersgd_batched" else powerSGD_hook.powerSGD_hook
    if name == "post_local":
        return post_localSGD_hook.PostLocalSGDState(None, None, 2, post_local_gradient_allreduce=False), post_localSGD_hook.post_localSGD_hook
    hooks = {
        "allreduce": d.allreduce_hook, "fp16": d.fp16_compress_hook, "bf16": lambda state, bucket: d.bf16_compress_hook(state, bucket), "fp16_wrapper": d.fp16_compress_wrapper(d.allreduce_hook),
        "noop": lambda state, bucket: Done(bucket.buffer()).future, "quantize": quantization_hooks.quantization_pertensor_hook, "quantize_channel": quantization_hooks.quantization_perchannel_hook,
    }  # fmt: skip
    return None, hooks.get(name)


class Bucket:
    """For a dtype that DDP over Gloo does not take: what a hook sees."""

    def __init__(self, flat):
        self.flat = flat

    def buffer(self):
        return self.flat


def without_ddp(setup, rank, world, out):
    state, hook = hook_of(setup)
    for step in range(6):
        f = [x.flatten() for x in factors(setup, step, rank)]
        for i, g in enumerate(hook(state, Bucket(torch.cat(f))).wait().split([x.numel() for x in f])):
            out.write("%s%d %d %d %d %s\n" % (setup, world, step, rank, i, bits(g)))


def curve(setup, rank, world, out):
    def even(a, b):
        return (mixed(0, a, b, a * b) % 2001 - 1000) / 1000.0

    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    first = 0
    for p in net.parameters():
        p.data = torch.tensor([even(first + k, 3) for k in range(p.numel())], dtype=F32).reshape(p.shape)
        first += p.numel()
    ddp = DistributedDataParallel(net)
    if hook_of(setup)[1]:
        ddp.register_comm_hook(*hook_of(setup))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    x = torch.tensor([[even(rank * 50 + b, i + 7) for i in range(4)] for b in range(6)], dtype=F32)
    y = x[:, 0] * x[:, 1] + 0.5 * x[:, 2]
    for step in range(60):
        optimizer.zero_grad()
        loss = ((ddp(x)[:, 0] - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        out.write("%s%d %d %d 0 %s\n" % (setup, world, step, rank, bits(loss)))


def run_setup(setup, rank, world, out):
    torch.manual_seed(1)
    if setup.startswith("curve"):
        return curve(setup, rank, world, out)
    if dtype_of(setup) == BF16:
        return without_ddp(setup, rank, world, out)
    ddp = DistributedDataParallel(SparseModel() if setup == "sparse" else Model(dtype_of(setup), setup == "join_buffers"), find_unused_parameters=setup.startswith("unused"), static_graph=setup == "static")
    if hook_of(setup)[1]:
        ddp.register_comm_hook(*hook_of(setup))
    if setup.startswith("join"):
        with ddp.join(divide_by_initial_world_size=setup != "join_effective"):
            for step in range(4 if (rank != 0) != (setup == "join_buffers") else 2):
                step_of(setup, ddp, step, rank, world, out)
    else:
        for step in range(6):
            step_of(setup, ddp, step, rank, world, out)


def run(rank, world, port, setups, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=datetime.timedelta(seconds=30))
    patch()
    keep = []  # what is never taken down cannot hang while it is
    for setup in setups:
        with open("%s/%s.%d" % (folder, setup, rank), "w") as out:
            try:
                keep.append(run_setup(setup, rank, world, out))
                out.write("end\n")
            except (RuntimeError, TypeError, KeyError) as e:  # on all ranks alike; the others go on
                print("%s: %s" % (setup, e), file=sys.stderr)
    os._exit(0)  # leaving in an orderly way sometimes hangs with this Gloo


def first_q(setup):
    """What PowerSGDState of seed 0 draws for its first matrix: of 8 columns, or of the square of 57 values."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(numpy.random.RandomState(0).randint(1_000_000_000))
        rank = 2 if setup == "powersgd_rank2" else 1
        return setup + ":" + bits(torch.randn(*((8, rank) if setup == "powersgd_batched" else (1, 8, rank)), dtype=dtype_of(setup)).to(F32)).replace(" ", ":")


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


def buckets():
    """Torch's assignment over the parameters in reverse order, its buckets in the order in which that order completes them."""
    x = 12345

    def draw():
        nonlocal x
        x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
        return x >> 8

    for c in range(500):
        n, most, kinds = 1 + draw() % 40, 1 + draw() % 3000, 1 + draw() % 4
        first = 1 + draw() % 4000
        limits = [first, first + draw() % 20000]
        tensors = []
        for _ in range(n):
            count = draw() % most
            tensors.append(torch.empty(count, dtype=[F32, F64, F16, BF16][draw() % kinds]))
        assigned = dist._compute_bucket_assignment_by_size(tensors[::-1], limits, [False] * n, list(range(n - 1, -1, -1)))[0]
        of = [0] * n
        for number, members in enumerate(sorted(assigned, key=min, reverse=True)):
            for i in members:
                of[i] = number
        yield "buckets %d 0 0 %s" % (c, " ".join(map(str, of)))


def table(lines):
    return {tuple(f[:4]): f[4:] for f in (line.split() for line in lines) if len(f) >= 4 and f[1].isdigit()}


def numbers(words):
    return [struct.unpack(">d" if len(w) == 16 else ">f", bytes.fromhex(w))[0] for w in words]


def same(name, a, b):
    """Exact where the order of additions is one; else within what rounding to f32 explains."""
    if a == b:
        return True
    if not name.startswith(("powersgd", "curve")) or len(a) != len(b):
        return False
    within = 2e-3 if name.startswith("curve_") else 1e-5  # one value that rounds to the other side, and what follows
    return all(abs(p - q) < within * (1 + abs(p)) for p, q in zip(numbers(a), numbers(b)))


def attempt(world, setups, folder, limit):
    """Runs them in one set of processes; what they say of each setup that all of them finished."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    processes = [mp.get_context("spawn").Process(target=run, args=(rank, world, port, setups, folder)) for rank in range(world)]
    for p in processes:
        p.start()
    limit += time.monotonic()
    for p in processes:
        p.join(max(0, limit - time.monotonic()))
    for p in processes:
        p.kill()
        p.join()
    for setup in setups:
        files = ["%s/%s.%d" % (folder, setup, rank) for rank in range(world)]
        texts = [open(f).read().splitlines() if os.path.exists(f) else [] for f in files]
        if all(t and t[-1] == "end" for t in texts):
            yield setup, [line for t in texts for line in t[:-1]]


def torch_side(folder):
    got = {}
    for world, setups, limit in [(2, SETUPS, 120), (4, ["whole"], 40)] + [(2, [s], 40) for s in ALONE]:
        for _ in range(3):  # a second and a third time what did not come to its end
            left = [s for s in setups if s not in got]
            if left:
                got.update(attempt(world, left, folder, limit))
    return got


def main():
    theirs, skipped = list(samples()) + list(buckets()), []
    got = torch_side(sys.argv[2])
    for setup in SETUPS + ["whole"] + ALONE:
        theirs += got.get(setup, [])
        if setup not in got:
            skipped.append(setup)
            print("SKIP %s: PyTorch's side did not come to its end" % setup)
    ours = subprocess.run([sys.argv[1]] + [first_q(s) for s in POWERSGD], stdout=subprocess.PIPE, universal_newlines=True, timeout=120)
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
