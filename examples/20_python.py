# 20_python.py - a network of two layers, in Python, trained by all ranks
#
# You learn: gradients of numpy are written where they travel, and leave while the backward pass still runs.
#
#     PYTHONPATH=python python3 -m cdp run -n 4 python3 examples/20_python.py      or alone, without `-m cdp run -n 4`
#
# SPDX-License-Identifier: MIT-0 OR Unlicense
import sys
import numpy as np
import cdp

if sys.argv[1:] in (["--help"], ["-h"]):
    sys.exit(print("usage: 20_python.py [STEPS (default: 600)]: learns which points lie in a circle; prints PASS or why not"))
world = cdp.init(alone_ok=True)                       # one rank where no launcher has started it
rng = np.random.default_rng(world.rank)               # every rank draws other points, and other weights:
f32 = lambda *shape: rng.normal(0, 1, shape).astype(np.float32)
p = {"w1": f32(2, 32), "b1": f32(32), "w2": f32(32, 1) / 8, "b2": f32(1)}
ddp = cdp.DDP(world, p)                               # those of rank 0 count
seen = None                                           # loss, and part of the points that are right
for step in range(int((sys.argv[1:] or ["600"])[0])):
    x = rng.uniform(-1.5, 1.5, (128 // world.size + 1, 2)).astype(np.float32)
    y = np.hypot(x[:, :1], x[:, 1:]) < 1              # in the circle?
    h = np.maximum(x @ p["w1"] + p["b1"], 0)
    out = 1 / (1 + np.exp(-(h @ p["w2"] + p["b2"])))
    mean = np.array([((out - y) ** 2).mean(), ((out > 0.5) == y).mean()])
    world.allreduce(mean, op="avg")
    with ddp.backward():                              # the last layer first: its bucket leaves first
        d = (out - y) / len(x)
        ddp.grad("w2")[:], ddp.grad("b2")[:] = h.T @ d, d.sum(0)
        ddp.ready("b2"), ddp.ready("w2")
        d = d @ p["w2"].T * (h > 0)
        ddp.grad("w1")[:], ddp.grad("b1")[:] = x.T @ d, d.sum(0)
        ddp.ready("b1"), ddp.ready("w1")
    for name, w in p.items():
        w -= 0.5 * ddp.grad(name)                     # the mean over all ranks
    seen = mean if seen is None else 0.95 * seen + 0.05 * mean
ddp.verify()                                          # the same bits on all ranks
verdict = "PASS" if seen[1] > 0.9 else "FAIL: 90% are wanted"
print(f"rank {world.rank} of {world.size}: loss {seen[0]:.3f}, {seen[1]:.0%} of the points are right: {verdict}")
ddp.close(), world.close()
sys.exit(verdict != "PASS")
