"""The side of PyTorch of the measurement of losses and attention: see losses.sh.

A line for each case: NAME MICROSECONDS, the least processor time of one forward and backward, one thread. Attention by
the function that PyTorch has for it, where it has one, and by two matrix products and a softmax: names with _products."""
import sys
import time

import torch
import torch.nn.functional as F

torch.set_num_threads(1)
turns = int(sys.argv[2]) if len(sys.argv) > 2 else 7


def least(name, run, leaves):
    best = None
    for _ in range(turns):
        for leaf in leaves:
            leaf.grad = None
        start = time.process_time()
        run()
        took = time.process_time() - start
        best = took if best is None or took < best else best
    print(f"{name} {best * 1e6:.1f}", flush=True)


def loss(rows, classes):
    x = torch.rand(rows, classes).mul_(2).sub_(1).requires_grad_()
    targets = (torch.arange(rows) * 31 + 7) % classes
    ones = torch.ones(rows)
    least(f"loss_{rows}x{classes}", lambda: F.cross_entropy(x, targets, reduction="none").backward(ones), [x])


def products(q, k, v, mask):
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return torch.softmax(scores if mask is None else scores.masked_fill(mask, float("-inf")), -1) @ v


def attention(length, heads, width, causal):
    q, k, v = ((torch.rand(1, heads, length, width) * 2 - 1).requires_grad_() for _ in range(3))
    grad = torch.rand(1, heads, length, width)
    mask = torch.ones(length, length, dtype=torch.bool).triu(1) if causal else None
    name = f"attention_{length}x{heads}x{width}" + ("_causal" if causal else "")
    if hasattr(F, "scaled_dot_product_attention"):
        least(name, lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal).backward(grad), [q, k, v])
    least(name + "_products", lambda: products(q, k, v, mask).backward(grad), [q, k, v])


loss(256, 8192)
loss(64, 32000)
loss(2048, 1000)
for causal in (False, True):
    attention(512, 8, 64, causal)
    attention(1024, 4, 128, causal)
