"""The training of fsdp_parity.c with PyTorch, in one process that has the batches of all ranks, which is what
FullyShardedDataParallel computes; compares losses and parameters of 20 steps.

test_fsdp_parity.py PROGRAM    PROGRAM is the compiled fsdp_parity.c. Ends with "N passed, N failed"."""
import subprocess
import sys

import torch

IN, HIDDEN, OUT, BATCH, STEPS = 7, 11, 3, 4, 20
SHAPES = [(HIDDEN, IN), (HIDDEN,), (OUT, HIDDEN), (OUT,)]
LIMIT = 1e-5


def drawn(a, b, c):
    return ((((a * 7919 + b * 104729 + c * 1299709 + 1) * 2654435761) & 0xFFFFFFFF) >> 8) / 16777216.0 - 0.5


def train(ranks):
    """Losses of all steps, and the parameters after them."""
    params = []
    for i, shape in enumerate(SHAPES):
        count = torch.Size(shape).numel()
        params.append(torch.nn.Parameter(torch.tensor([drawn(1000 + i, 0, k) for k in range(count)]).reshape(shape)))
    optimizer = torch.optim.AdamW(params, lr=1e-2, weight_decay=1e-2)
    losses = []
    for step in range(STEPS):
        rows = range(ranks * BATCH)
        x = torch.tensor([[drawn(step, s, i) for i in range(IN)] for s in rows])
        t = torch.tensor([[drawn(step, s, 100 + o) for o in range(OUT)] for s in rows])
        w1, b1, w2, b2 = params
        loss = torch.nn.functional.mse_loss(torch.tanh(x @ w1.T + b1) @ w2.T + b2, t)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 0.25)
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().flatten().tolist() for p in params]


def main():
    lines = [line.split() for line in subprocess.run([sys.argv[1]], check=True, capture_output=True, text=True).stdout.splitlines()]
    passed = failed = 0
    for ranks in range(1, 5):
        losses, params = train(ranks)
        for stage in range(3):
            mine = [line for line in lines if line[:2] == [str(ranks), str(stage)]]
            far, seen = 0.0, 0
            for _, _, what, *rest in mine:
                expected = losses[int(rest[0])] if what == "loss" else params[int(rest[0])][int(rest[1])]
                far = max(far, abs(float(rest[-1]) - expected))
                seen += 1
            right = far < LIMIT and seen == STEPS + sum(len(p) for p in params) and losses[-1] < losses[0]
            print(f"{'ok' if right else 'not ok'} {ranks} ranks, stage {3 - stage}: {seen} numbers differ by {far:.1e} at most")
            passed += right
            failed += not right
    print(f"{passed} passed, {failed} failed")
    return failed > 0


sys.exit(main())
