"""Six steps of each optimizer here and in torch.optim, from one set of parameters and gradients. With fma, those
without square roots must have the same bits; the others may differ where PyTorch's vector library does not return
the nearest root, which later steps multiply: their parameters must agree to a few parts in a million of a step."""
import ctypes
import sys

import torch

update = ctypes.CDLL(sys.argv[1]).update
COUNT, STEPS = 1003, 6
SGD, ADAM, ADAMW, ADAGRAD, RMSPROP = 1, 2, 3, 5, 7
o = torch.optim
CASES = [
    # name, kind, torch's, its settings, flags, exact
    ("sgd", SGD, o.SGD, dict(lr=0.1), 0, True),
    ("sgd, decay", SGD, o.SGD, dict(lr=0.1, weight_decay=0.01), 0, True),
    ("momentum, dampening", SGD, o.SGD, dict(lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01), 0, True),
    ("nesterov", SGD, o.SGD, dict(lr=0.1, momentum=0.9, nesterov=True), 1, True),
    ("adam", ADAM, o.Adam, dict(lr=0.01), 0, False),
    ("adam, decay", ADAM, o.Adam, dict(lr=0.01, weight_decay=0.1), 0, False),
    ("amsgrad", ADAM, o.Adam, dict(lr=0.01, amsgrad=True), 2, False),
    ("adamw", ADAMW, o.AdamW, dict(lr=0.01, weight_decay=0.1), 0, False),
    ("adagrad", ADAGRAD, o.Adagrad, dict(lr=0.01, lr_decay=0.1), 0, False),
    ("rmsprop", RMSPROP, o.RMSprop, dict(lr=0.01, alpha=0.9), 0, False),
    ("rmsprop, centered, momentum", RMSPROP, o.RMSprop,
     dict(lr=0.01, alpha=0.9, centered=True, momentum=0.9), 4, False),
]


def at(tensor):
    return ctypes.cast(tensor.data_ptr(), ctypes.POINTER(ctypes.c_float))


def compare(kind, theirs, settings, flags):
    """How many values have the same bits, of how many; and the largest difference."""
    torch.manual_seed(1)
    weight = torch.nn.Parameter(torch.randn(COUNT))
    optim = theirs([weight], **settings)
    mine = weight.detach().clone()
    states = [torch.zeros(COUNT) for _ in range(3)]
    names = ("lr", "momentum", "dampening", "weight_decay", "alpha", "lr_decay")
    numbers = (ctypes.c_double * 6)(*[settings.get(n, 0) for n in names])
    pointers = (ctypes.POINTER(ctypes.c_float) * 3)(*[at(s) for s in states])
    equal, worst = 0, 0.0
    for step in range(1, STEPS + 1):
        grad = torch.randn(COUNT)
        weight.grad = grad.clone()
        optim.step()
        if update(kind, ctypes.c_uint64(step), numbers, flags | 8, at(mine), pointers, at(grad),
                  ctypes.c_uint64(COUNT)) < 0:
            return 0, COUNT, float("inf")
        there = weight.detach()
        equal += int((there.view(torch.int32) == mine.view(torch.int32)).sum())
        worst = max(worst, float((there - mine).abs().max()))
    return equal, STEPS * COUNT, worst


passed = failed = 0
for name, kind, theirs, settings, flags, exact in CASES:
    equal, all_of, worst = compare(kind, theirs, settings, flags)
    fine = equal == all_of if exact else worst <= 1e-5 * settings["lr"] + 5e-7
    print("%s %s: %.2f %% of the bits of PyTorch %s, at most %.1e apart"
          % ("ok" if fine else "not ok", name, 100.0 * equal / all_of, torch.__version__, worst))
    passed, failed = passed + fine, failed + (not fine)
print("%d passed, %d failed" % (passed, failed))
sys.exit(failed != 0)
