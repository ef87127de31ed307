"""The training of fsdp_parity.c with PyTorch; compares losses and parameters of 20 steps, and of a training whose numbers f32 holds
exactly, all bits of the parameters. Stages 3 and 2 are those of fully_shard, stage 1 those of ZeroRedundancyOptimizer, with as many
processes over Gloo; on one rank, and where this PyTorch has no fully_shard, one process has the batches of all ranks, which is what
these compute.

test_fsdp_parity.py PROGRAM    PROGRAM is the compiled fsdp_parity.c. Ends with "N passed, N failed"."""
import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

try:
    from torch.distributed.fsdp import fully_shard
except (ImportError, ValueError):  # torch 1.13 under Python 3.11 raises the second
    fully_shard = None

IN, HIDDEN, OUT, BATCH, STEPS = 7, 11, 3, 4, 20
SHAPES = [(HIDDEN, IN), (HIDDEN,), (OUT, HIDDEN), (OUT,)]
LIMIT = 1e-5


def drawn(a, b, c):
    return ((((a * 7919 + b * 104729 + c * 1299709 + 1) * 2654435761) & 0xFFFFFFFF) >> 8) / 16777216.0 - 0.5


def filled(value):
    """Tensors of all shapes; value(parameter, element)."""
    return [torch.tensor([value(i, k) for k in range(torch.Size(shape).numel())]).reshape(shape) for i, shape in enumerate(SHAPES)]


class Layer(torch.nn.Module):
    def __init__(self, w, b):
        super().__init__()
        self.w, self.b = torch.nn.Parameter(w), torch.nn.Parameter(b)

    def forward(self, x, exact=None):
        if exact is None:
            return x @ self.w.T + self.b
        return x + (self.w * exact[0]).sum() + (self.b * exact[1]).sum()


class Net(torch.nn.Module):
    def __init__(self, values):
        super().__init__()
        self.first, self.second = Layer(*values[:2]), Layer(*values[2:])

    def forward(self, x, exact=None):
        if exact is None:
            return self.second(torch.tanh(self.first(x)))
        return self.second(self.first(x, exact[:2]), exact[2:])


def optimizer_for(net, stage, kind, **settings):
    """Divides the model as `stage` (3, 2, 1) says; 0: not at all."""
    if stage >= 2:
        for layer in (net.first, net.second):
            fully_shard(layer, reshard_after_forward=stage == 3)
        fully_shard(net)
    if stage == 1:
        net = DistributedDataParallel(net)
        return net, ZeroRedundancyOptimizer(net.parameters(), optimizer_class=kind, **settings)
    return net, kind(net.parameters(), **settings)


def whole(net):
    return [(p.full_tensor() if hasattr(p, "full_tensor") else p).detach().flatten().tolist() for p in net.parameters()]


def train(ranks, mine, stage):
    """The batches of the ranks `mine`: losses of all steps, and the parameters after them."""
    net, optimizer = optimizer_for(Net(filled(lambda i, k: drawn(1000 + i, 0, k))), stage, torch.optim.AdamW, lr=1e-2, weight_decay=1e-2)
    losses = []
    for step in range(STEPS):
        rows = [r * BATCH + s for r in mine for s in range(BATCH)]
        x = torch.tensor([[drawn(step, s, i) for i in range(IN)] for s in rows])
        t = torch.tensor([[drawn(step, s, 100 + o) for o in range(OUT)] for s in rows])
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), t)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.25)
        optimizer.step()
        mean = loss.detach().double()
        if len(mine) < ranks:
            dist.all_reduce(mean)
        losses.append(mean.item() * len(mine) / ranks)
    return losses, whole(net)


def train_exactly(ranks, mine, stage):
    net, optimizer = optimizer_for(Net(filled(lambda i, k: 0.0)), stage, torch.optim.SGD, lr=0.125)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = 0
        for r in mine:
            whole_numbers = filled(lambda i, k: float((16 * drawn(step, r * len(SHAPES) + i, k)) // 1))
            loss = loss + net(torch.zeros((), requires_grad=True), whole_numbers) / len(mine)
        loss.backward()
        optimizer.step()
    return whole(net)


def worker(rank, ranks, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{ranks}", rank=rank, world_size=ranks)
    result = {stage: (*train(ranks, [rank], stage), train_exactly(ranks, [rank], stage)) for stage in (3, 2, 1)}
    if rank == 0:
        torch.save(result, f"{folder}/result{ranks}")
    dist.barrier()
    dist.destroy_process_group()


def of_pytorch(ranks, folder):
    """Stage: losses, parameters, parameters of the exact training."""
    if fully_shard is None or ranks == 1:
        alone = (*train(ranks, range(ranks), 0), train_exactly(ranks, range(ranks), 0))
        return {stage: alone for stage in (3, 2, 1)}
    mp.start_processes(worker, (ranks, folder), nprocs=ranks, start_method="fork")
    return torch.load(f"{folder}/result{ranks}")


def main():
    lines = [line.split() for line in subprocess.run([sys.argv[1]], check=True, capture_output=True, text=True).stdout.splitlines()]
    passed = failed = 0
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        theirs = {ranks: of_pytorch(ranks, folder) for ranks in (4, 3, 2, 1)}  # forks before this process computes
    for ranks in range(1, 5):
        for stage in range(3):
            losses, params, exact = theirs[ranks][3 - stage]
            far, seen, wrong = 0.0, 0, 0
            for _, _, what, *rest in (line for line in lines if line[:2] == [str(ranks), str(stage)]):
                seen += 1
                if what == "exact":
                    wrong += float(rest[-1]) != exact[int(rest[0])][int(rest[1])]
                    continue
                expected = losses[int(rest[0])] if what == "loss" else params[int(rest[0])][int(rest[1])]
                far = max(far, abs(float(rest[-1]) - expected))
            exactly = ranks != 3  # a mean of three is rounded
            right = far < LIMIT and seen == STEPS + 2 * sum(len(p) for p in params) and losses[-1] < losses[0] and not (exactly and wrong)
            beside = "one process" if ranks == 1 or fully_shard is None else "ZeroRedundancyOptimizer" if stage == 2 else "fully_shard"
            print(f"{'ok' if right else 'not ok'} {ranks} ranks, stage {3 - stage}, beside {beside}: {seen} numbers differ by {far:.1e} at most"
                  f"{f', {wrong} of the exact ones' if exactly else ''}")
            passed += right
            failed += not right
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
