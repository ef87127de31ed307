"""The schedules of pipeline_parity.c with torch.distributed.pipelining: the rows of each rank, and losses and
gradients of a step over two processes with gloo.

test_pipeline_parity.py PROGRAM    PROGRAM is the compiled pipeline_parity.c. Ends with "N passed, N failed"."""
import logging
import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed import pipelining

WIDTH, SAMPLES, MICROS = 4, 2, 4
LIMIT = 1e-6
NAMES = ["1F1B", "GPipe", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]


def drawn(a, b, c):
    return ((((a * 7919 + b * 104729 + c * 1299709 + 1) * 2654435761) & 0xFFFFFFFF) >> 8) / 16777216.0 - 0.5


class Place:
    """What a schedule asks a stage for before it runs."""

    def __init__(self, stage, stages, rank, ranks):
        self.stage_index, self.num_stages, self.group_rank, self.group_size = stage, stages, rank, ranks
        self.is_first, self.is_last = stage == 0, stage + 1 == stages
        self.device, self.group, self.submod = torch.device("cpu"), None, None
        self.stage_index_to_group_rank = {}
        self.has_backward = True


def stages_of(name, rank, ranks, per_rank):
    if name in ("ZBVZeroBubble", "DualPipeV"):
        return [rank, 2 * ranks - 1 - rank]
    return [rank + ranks * i for i in range(per_rank)]


def words(action):
    """Compute actions of an action: a pair has two."""
    if action is None or action == "":
        return []
    subs = getattr(action, "sub_actions", None)
    if subs:
        return [w for sub in subs for w in words(sub)]
    text = str(action)
    kind = text.lstrip("0123456789")
    return [text] if kind[0] in "FBIW" and kind[1:].isdigit() else []


def table(name, p, v, m):
    """The rows of each rank; None: PyTorch does not have this size."""
    places = [Place(s, p * v, 0, p) for s in stages_of(name, 0, p, v)]
    try:
        made = getattr(pipelining, "Schedule" + name)(places[0] if name in ("1F1B", "GPipe") else places, m)
    except ValueError:
        return None
    rows = [[w for action in made.pipeline_order[rank] for w in words(action)] for rank in range(p)]
    if name == "1F1B":  # what it prints, and does not run, numbers the last rank's forwards from 1
        rows[-1] = [w if "F" not in w else f"{p - 1}F{int(w.split('F')[1]) - 1}" for w in rows[-1]]
    return rows


def compare_tables(lines):
    mine = {}
    for line in lines:
        if line.startswith("table "):
            head, _, cells = line.partition(": ")
            _, name, p, v, m, _ = head.split()
            mine.setdefault((name, int(p), int(v), int(m)), []).append(cells.split(","))
    passed = failed = 0
    for name in NAMES:
        equal, none, bad = 0, 0, []
        for key, rows in mine.items():
            if key[0] != name:
                continue
            # PyTorch prints micro-batches that are not there where a 1F1B has fewer of them than ranks
            theirs = None if name == "1F1B" and key[3] < key[1] else table(*key)
            none += theirs is None
            equal += theirs == rows
            if theirs is not None and theirs != rows:
                bad.append(key)
        print(f"{'ok' if equal and not bad else 'not ok'} {name}: {equal} schedules have PyTorch's rows, {len(bad)} differ "
              f"({bad[:3]}), {none} not compared")
        passed += bool(equal and not bad)
        failed += not (equal and not bad)
    return passed, failed


class Stage(torch.nn.Module):
    def __init__(self, stage):
        super().__init__()
        values = [drawn(1000 + stage, e, 0) for e in range(WIDTH * WIDTH + WIDTH)]
        self.w = torch.nn.Parameter(torch.tensor(values[: WIDTH * WIDTH]).reshape(WIDTH, WIDTH))
        self.b = torch.nn.Parameter(torch.tensor(values[WIDTH * WIDTH :]))

    def forward(self, x):
        return torch.tanh(x @ self.w.T + self.b)


def rank_main(name, rank, file):
    """One process: prints its losses and gradients as pipeline_parity.c does."""
    dist.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=2)
    single = name in ("1F1B", "GPipe")
    numbers = stages_of(name, rank, 2, 1 if single else 2)
    count = 2 if single else 4
    modules = [Stage(s) for s in numbers]
    x = torch.tensor([[drawn(0, s, i) for i in range(WIDTH)] for s in range(MICROS * SAMPLES)])
    t = torch.tensor([[drawn(1, s, i) for i in range(WIDTH)] for s in range(MICROS * SAMPLES)])
    stages = [pipelining.PipelineStage(module, s, count, torch.device("cpu")) for module, s in zip(modules, numbers)]
    schedule = getattr(pipelining, "Schedule" + name)
    made = schedule(stages[0] if single else stages, MICROS, loss_fn=torch.nn.functional.mse_loss)
    losses = []
    args = (x,) if 0 in numbers else ()
    more = {"target": t, "losses": losses} if count - 1 in numbers else {}
    made.step(*args, **more)
    for i, loss in enumerate(losses):
        print(f"loss {name} {i} {loss.item():.9g}")
    for s, module in zip(numbers, modules):
        for e, value in enumerate(module.w.grad.flatten().tolist() + module.b.grad.tolist()):
            print(f"grad {name} {s} {e} {value:.9g}")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


def compare_step(name, lines):
    """Largest difference, and how many numbers there were."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen([sys.executable, "-W", "ignore", __file__, "rank", name, str(r), os.path.join(folder, "store")],
                                  stdout=subprocess.PIPE, text=True) for r in range(2)]
        theirs = [line for r in ranks for line in r.communicate(timeout=120)[0].splitlines()]
    mine = {tuple(line.split()[:-1]): float(line.split()[-1]) for line in lines if line.split()[:2] in (["loss", name], ["grad", name])}
    there = {tuple(line.split()[:-1]): float(line.split()[-1]) for line in theirs if line.split()[:2] in (["loss", name], ["grad", name])}
    same = mine.keys() == there.keys()
    far = max((abs(mine[k] - there[k]) for k in mine if k in there), default=1.0)
    right = same and far < LIMIT and all(r.returncode == 0 for r in ranks)
    print(f"{'ok' if right else 'not ok'} {name}: {len(there)} losses and gradients of a step differ by {far:.1e} at most")
    return right


def main():
    logging.disable(logging.WARNING)
    if sys.argv[1] == "rank":
        return rank_main(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    lines = subprocess.run([sys.argv[1]], check=True, capture_output=True, text=True).stdout.splitlines()
    passed, failed = compare_tables(lines)
    for name in NAMES:
        right = compare_step(name, lines)
        passed += right
        failed += not right
    print(f"{passed} passed, {failed} failed")
    return failed > 0


sys.exit(main())
