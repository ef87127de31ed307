"""Three batches through cdp_batch_norm, of ranks with uneven and empty parts, and through PyTorch's BatchNorm on the
joined batch: outputs, gradients, running statistics and the outputs by these must agree. The seed is fixed."""
import ctypes
import sys

import torch

library = ctypes.CDLL(sys.argv[1])
BATCHES, CHANNELS = 3, 5
U32, DOUBLE, POINTER = ctypes.c_uint32, ctypes.c_double, ctypes.c_void_p
PARTS = [(11,), (5, 6), (0, 11), (10, 1), (4, 0, 7), (5, 0, 3, 3), (0, 0, 0, 11)]
SHAPES = [(), (7,), (3, 4)]  # what follows [batch][channels]: BatchNorm1d, the same of sequences, BatchNorm2d
SETTINGS = [dict(), dict(momentum=0.3, eps=1e-3), dict(momentum=None)]  # None: the mean of all batches
OUT = ["y", "dx", "d_weight", "d_bias", "eval", "running_mean", "running_var"]


class Layer(ctypes.Structure):
    _fields_ = [(n, U32) for n in ("ranks", "channels", "inner", "wide", "cumulative", "tracked")] \
        + [("momentum", DOUBLE), ("eps", DOUBLE)] \
        + [(n, POINTER) for n in ["part", "x", "dy", "weight", "bias"] + OUT] + [("failed", U32)]


def ours(parts, settings, tracked, x, dy, module, running):
    """What the ranks have: a dictionary with OUT as keys."""
    wide = lambda t: t.detach().double().contiguous()
    got = {"y": torch.zeros_like(wide(x)), "dx": torch.zeros_like(wide(x)), "eval": torch.zeros_like(wide(x)),
           "d_weight": torch.zeros(CHANNELS).double(), "d_bias": torch.zeros(CHANNELS).double(),
           "running_mean": running[0].clone(), "running_var": running[1].clone()}
    kept = dict(got, x=x.detach().contiguous(), dy=dy.contiguous(), weight=wide(module.weight), bias=wide(module.bias))
    layer = Layer(ranks=len(parts), channels=CHANNELS, inner=x[0, 0].numel(), wide=x.dtype == torch.float64,
                  cumulative=settings.get("momentum", 0) is None, tracked=tracked,
                  momentum=settings.get("momentum") or 0, eps=settings.get("eps", 0))
    of_ranks = (U32 * len(parts))(*parts)
    layer.part = ctypes.addressof(of_ranks)
    for name, tensor in kept.items():
        setattr(layer, name, tensor.data_ptr())
    return got if library.batch(ctypes.byref(layer)) == 0 else None


def theirs(module, x, dy):
    x.requires_grad_(True)
    module.train()
    module.zero_grad()
    y = module(x)
    y.backward(dy)
    module.eval()
    with torch.no_grad():
        by_running = module(x)
    return {"y": y, "dx": x.grad, "d_weight": module.weight.grad, "d_bias": module.bias.grad, "eval": by_running,
            "running_mean": module.running_mean, "running_var": module.running_var}


def apart(a, b):
    """The largest difference, as a part of the largest value."""
    a, b = a.detach().double(), b.detach().double()
    most = float((a - b).abs().max() / b.abs().max().clamp(min=1)) if a.shape == b.shape else float("inf")
    return most if most == most else float("inf")


def compare(parts, shape, dtype, settings):
    """The name and size of the largest difference in all batches."""
    torch.manual_seed(1)
    module = (torch.nn.BatchNorm2d if len(shape) == 2 else torch.nn.BatchNorm1d)(CHANNELS, **settings).to(dtype)
    with torch.no_grad():
        module.weight.normal_()
        module.bias.normal_()
    running = [torch.zeros(CHANNELS).double(), torch.ones(CHANNELS).double()]
    worst = ("nothing", 0.0)
    for tracked in range(BATCHES):
        size = (sum(parts), CHANNELS) + shape
        x, dy = torch.randn(size, dtype=dtype) * 3 + tracked, torch.randn(size, dtype=dtype)
        mine = ours(parts, settings, tracked, x, dy, module, running)
        if mine is None:
            return "a rank failed", float("inf")
        there = theirs(module, x, dy)
        worst = max([worst] + [(n, apart(mine[n], there[n])) for n in OUT], key=lambda w: w[1])
        running = [mine["running_mean"], mine["running_var"]]
    return worst


passed = failed = 0
for dtype, within in ((torch.float32, 2e-6), (torch.float64, 1e-13)):
    for settings in SETTINGS:
        for shape in SHAPES:
            found = [(parts,) + compare(parts, shape, dtype, settings) for parts in PARTS]
            parts, what, most = max(found, key=lambda f: f[2])
            fine = most <= within
            print("%s %s [batch, %d%s] %s: at most %.1e apart from PyTorch %s (%s of parts %s)"
                  % ("ok" if fine else "not ok", str(dtype)[6:], CHANNELS, "".join(", %d" % n for n in shape),
                     settings or "defaults", most, torch.__version__, what, parts))
            passed, failed = passed + fine, failed + (not fine)
print("%d passed, %d failed" % (passed, failed))
sys.exit(failed != 0)
