"""Random cases of cdp_dtensor.h beside PyTorch, from a seed: where torch.chunk() puts the elements of a tensor, what its
sums make of contributions, its cross entropy, attention and layers with their gradients by autograd.

test_tensors.py LIBRARY SEED SECONDS    SECONDS: for each of the four. A case that fails prints its seed: SEED=n of
test_tensors.sh begins with it. Ends with "N passed, N failed"."""
import ctypes
import itertools
import random
import sys
import time

import torch

library = ctypes.CDLL(sys.argv[1])
U32, U64, DOUBLE, POINTER, TEXT = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_double, ctypes.c_void_p, ctypes.c_char_p
NAMES = {torch.float32: "f32", torch.float64: "f64", torch.int32: "i32", torch.int64: "i64", torch.uint8: "u8",
         torch.bfloat16: "bf16", torch.float16: "f16"}
DTYPE = {t: library.tensors_dtype(name.encode()) for t, name in NAMES.items()}


class Move(ctypes.Structure):
    _fields_ = [(n, U32) for n in ("ranks", "dtype", "kind", "way", "ndim", "from_dims", "to_dims")] \
        + [("from_mesh", U32 * 6), ("to_mesh", U32 * 6), ("shape", U64 * 8), ("from_", TEXT), ("to", TEXT),
           ("in_", POINTER), ("out", POINTER)]


class Loss(ctypes.Structure):
    _fields_ = [("ranks", U32), ("dtype", U32), ("rows", U64), ("classes", U64), ("scale", DOUBLE), ("places", TEXT)] \
        + [(n, POINTER) for n in ("logits", "losses", "grad", "targets")]


class Attention(ctypes.Structure):
    _fields_ = [(n, U32) for n in ("ranks", "dtype", "causal", "gather")] \
        + [(n, U64) for n in ("batch", "length", "heads", "kv_heads", "width")] + [("scale", DOUBLE)] \
        + [(n, POINTER) for n in ("q", "k", "v", "grad_out", "out", "lse", "grad_q", "grad_k", "grad_v")]


class Layer(ctypes.Structure):
    _fields_ = [(n, U32) for n in ("ranks", "dtype", "style", "embedding", "again")] \
        + [(n, U64) for n in ("rows", "in_features", "out_features", "head")] + [("input", TEXT), ("output", TEXT)] \
        + [(n, POINTER) for n in ("x", "w", "bias", "grad_y", "y", "grad_x", "grad_w", "grad_bias")]


def pointers(tensors):
    """An array of the addresses of tensors, of which empty ones have none."""
    return (POINTER * len(tensors))(*[t.data_ptr() if t.numel() else None for t in tensors])


def address(array):
    return ctypes.cast(array, POINTER)


def near(mine, theirs, limit):
    """Equal, NaN and infinities included, but for `limit` of the largest finite number (at least of 1)."""
    mine, theirs = mine.double(), theirs.double()
    finite = theirs[theirs.isfinite()]
    room = limit * max(1.0, float(finite.abs().max()) if finite.numel() else 1.0)
    return torch.allclose(mine, theirs, rtol=0, atol=room, equal_nan=True)


# ---- layouts: a list of (kind, dim, order, block) for each dimension of the mesh ----

def spelled(places):
    def one(kind, dim, order, block):
        if kind != "S":
            return kind
        return "S%d" % dim + ("/%d" % block if block > 1 else "") + ("!%d" % order if order else "")
    return ",".join(one(*p) for p in places).encode()


def cut(tensor, dim, ranks, block):
    """The pieces of torch.chunk(), of which the last may be missing: they are empty then. Blocks stay whole."""
    if block > 1:
        each = -(-(-(-tensor.size(dim) // block)) // ranks) * block
        pieces = list(torch.split(tensor, each, dim)) if each else []
    else:
        pieces = list(torch.chunk(tensor, ranks, dim))
    return pieces + [tensor.narrow(dim, 0, 0)] * (ranks - len(pieces))


def local(tensor, mesh, places, coord):
    """What the rank at `coord` holds of a tensor that is not PARTIAL."""
    shards = [(p[2], by) for by, p in enumerate(places) if p[0] == "S"]
    for _, by in sorted(shards):
        _, dim, _, block = places[by]
        tensor = cut(tensor, dim, mesh[by], block)[coord[by]]
    return tensor.contiguous()


def reduced(stack, op):
    """The reduction of tensors in the first dimension."""
    if op == "P(min)":
        return stack.amin(0)
    if op == "P(max)":
        return stack.amax(0)
    whole = stack.double() if stack.is_floating_point() else stack.long()
    whole = whole.prod(0) if op == "P(product)" else whole.sum(0)
    return whole / len(stack) if op == "P(avg)" else whole


def partial_of(places):
    return [by for by, p in enumerate(places) if p[0][0] == "P"]


def total(of, mesh, places):
    """Reduces tensors `of` [coordinates of the PARTIAL dimensions]."""
    for by in reversed(partial_of(places)):
        of = {rest: reduced(torch.stack([of[rest + (k,)] for k in range(mesh[by])]), places[by][0])
              for rest in {key[:-1] for key in of}}
    return of[()]


def random_mesh(r, ranks):
    sizes = []
    while ranks > 1 and len(sizes) < 3:
        size = r.choice([d for d in range(2, ranks + 1) if ranks % d == 0])
        sizes.append(size)
        ranks //= size
    if ranks > 1:
        sizes.append(ranks)
    if r.random() < .2 or not sizes:
        sizes.insert(r.randrange(len(sizes) + 1), 1)
    return sizes


def random_places(r, mesh, ndim, op, partial):
    """partial: the mesh dimensions that may be PARTIAL."""
    places = []
    for by in range(len(mesh)):
        kind = r.choice("RSSP" if by in partial else "RSS")
        kind = "R" if kind == "S" and not ndim else kind
        places.append((op if kind == "P" else kind, r.randrange(ndim) if ndim else 0, 0, 1))
    if r.random() < .3:  # in another order: each number once
        orders = r.sample(range(len(mesh)), len(mesh))
        places = [(k, d, orders[i] if k == "S" else 0, b) for i, (k, d, _, b) in enumerate(places)]
    if r.random() < .3:  # blocks; where several dimensions cut one, all have the same
        block = r.randint(2, 3)
        places = [(k, d, o, block if k == "S" else 1) for k, d, o, b in places]
    return places


PLAN, ASYNC, TENSORS, FULL = range(4)


def move_case(r):
    dtype = r.choice(list(NAMES))
    ranks = r.choice([1, 2, 3, 4, 4, 6, 8])
    mesh = random_mesh(r, ranks)
    other = random_mesh(r, ranks) if r.random() < .15 else None
    ndim = r.randint(0, 3)
    shape = [r.choice([0, 1, 2, 3, 4, 5, 7, 8, 12] if r.random() < .9 else [33, 40]) for _ in range(ndim)]
    ops = ["P(sum)", "P(sum)", "P(min)", "P(max)", "P(product)"] + ["P(avg)"] * dtype.is_floating_point
    op = r.choice(ops)
    source = random_places(r, mesh, ndim, op, range(len(mesh)))
    if other:
        target = random_places(r, other, ndim, op, [])
    else:  # a target may stay PARTIAL; a cut may become a sum
        sums = op == "P(sum)"
        may = [by for by, p in enumerate(source) if p[0][0] == "P" or (sums and p[0] == "S")]
        target = random_places(r, mesh, ndim, op, may)
    way = r.choice([PLAN, PLAN, ASYNC, TENSORS, FULL])
    # steps by dimension exist on one mesh
    kind = r.randrange(4) if not other and way in (PLAN, ASYNC) else 0
    return dtype, ranks, mesh, other, shape, source, target, way, kind


def contributions(r, dtype, mesh, places, shape):
    """Whole numbers, whose sums and products are exact in every dtype and order."""
    generator = torch.Generator().manual_seed(r.randrange(1 << 30))
    low, high = (1, 3) if any(p[0] == "P(product)" for p in places) else (0, 4) if dtype == torch.uint8 else (-3, 4)
    return {key: torch.randint(low, high, shape, generator=generator).to(dtype)
            for key in itertools.product(*[range(mesh[by]) for by in partial_of(places)])}


def move(r):
    dtype, ranks, mesh, other, shape, source, target, way, kind = move_case(r)
    of = contributions(r, dtype, mesh, source, shape)
    coords = list(itertools.product(*map(range, mesh)))
    pieces = [local(of[tuple(c[by] for by in partial_of(source))], mesh, source, c) for c in coords]
    full = total(of, mesh, source)
    to_mesh = other or mesh
    if way == FULL:
        to_mesh, target = mesh, [("R", 0, 0, 1)] * len(mesh)
    to_coords = list(itertools.product(*map(range, to_mesh)))
    wanted = [local(full, to_mesh, target, c) for c in to_coords]
    got = [torch.full_like(w, 77, dtype=dtype) for w in wanted]
    ins, outs = pointers(pieces), pointers(got)
    c = Move(ranks=ranks, dtype=DTYPE[dtype], kind=kind, way=way, ndim=len(shape), from_dims=len(mesh),
             to_dims=len(other) if other else 0, from_mesh=(U32 * 6)(*mesh), to_mesh=(U32 * 6)(*(other or [])),
             shape=(U64 * 8)(*shape), from_=spelled(source), to=spelled(target), in_=address(ins), out=address(outs))
    what = "%s %s of %s, %s to %s on %s%s, kind %d, way %d" % (
        NAMES[dtype], shape, ranks, spelled(source).decode(), spelled(target).decode(), mesh, other or "", kind, way)
    if library.tensors_move(ctypes.byref(c)):
        return False, what
    keep = partial_of(target)
    limit = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-6, torch.float64: 1e-14}
    limit = limit[dtype] if any(p[0] == "P(avg)" for p in source) else 0
    for i, at in enumerate(to_coords):
        if any(at[by] for by in keep):
            continue
        same = {key: got[to_coords.index(tuple(key[keep.index(by)] if by in keep else x for by, x in enumerate(at)))]
                for key in itertools.product(*[range(to_mesh[by]) for by in keep])}
        mine = total(same, to_mesh, target)
        if wanted[i].numel() and not near(mine.to(dtype), wanted[i].to(dtype), limit):
            return False, what
    return True, what


def loss(r):
    dtype = r.choice([torch.float32, torch.float64])
    ranks, rows = r.randint(1, 5), r.randint(1, 9)
    classes = r.choice([r.randint(1, 9), r.randint(10, 99), r.randint(1000, 3000)])
    block = r.choice([1, 1, 3])
    cuts = r.random() < .8
    generator = torch.Generator().manual_seed(r.randrange(1 << 30))
    x = torch.randn(rows, classes, generator=generator, dtype=dtype) * r.choice([1, 10, 100])
    for value in (float("nan"), float("inf"), -float("inf")):
        if r.random() < .1:
            x[r.randrange(rows), r.randrange(classes)] = value
    targets = torch.tensor([r.randrange(classes) if r.random() < .8 else -100 for _ in range(rows)])
    scale = r.choice([1, .125, 3])
    x.requires_grad_(True)
    theirs = torch.nn.functional.cross_entropy(x, targets, reduction="none", ignore_index=-100)
    (theirs * scale).sum().backward()
    x.grad[targets < 0] = 0  # a row that does not count has no gradient; PyTorch's is 0 times its numbers
    place = ("S" if cuts else "R", 1, 0, block)
    grads = [local(x.grad, [ranks], [place], (k,)) for k in range(ranks)]
    pieces = [local(x.detach(), [ranks], [place], (k,)) for k in range(ranks)]
    losses, got = [torch.zeros(rows, dtype=dtype) for _ in range(ranks)], [torch.full_like(g, 77) for g in grads]
    arrays = [pointers(a) for a in (pieces, losses, got)]
    numbers = targets.int()
    c = Loss(ranks=ranks, dtype=DTYPE[dtype], rows=rows, classes=classes, scale=scale, places=spelled([place]),
             logits=address(arrays[0]), losses=address(arrays[1]), grad=address(arrays[2]), targets=numbers.data_ptr())
    limit = 1e-5 if dtype == torch.float32 else 1e-12
    what = "losses of %s, %d x %d, %s on %d ranks" % (NAMES[dtype], rows, classes, spelled([place]).decode(), ranks)
    fine = library.tensors_loss(ctypes.byref(c)) == 0
    fine = fine and all(near(mine, theirs.detach(), limit) for mine in losses)
    return fine and all(near(mine, g, limit) for mine, g in zip(got, grads)), what


def positions(length, ranks, causal, rank):
    if not causal:
        return cut(torch.arange(length), 0, ranks, 1)[rank]
    chunks = torch.arange(length).chunk(2 * ranks)
    return torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]])


def attend(q, k, v, scale, causal):
    """[batch, positions, heads, width] of all; and the logarithms of sums."""
    many = q.size(2) // k.size(2)
    k, v = k.repeat_interleave(many, 2), v.repeat_interleave(many, 2)
    scores = torch.einsum("bqhw,bkhw->bhqk", q, k) * scale
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -float("inf"))
    return torch.einsum("bhqk,bkhw->bqhw", scores.softmax(-1), v), scores.logsumexp(-1).transpose(1, 2)


def attention(r):
    dtype = r.choice([torch.float32, torch.float64])
    ranks, causal = r.randint(1, 4), r.random() < .5
    length = 2 * ranks * r.randint(1, 9) if causal else r.randint(1, 40)
    batch, kv_heads, width = r.randint(1, 2), r.randint(1, 2), r.choice([1, 2, 5, 8, 33])
    heads, scale = kv_heads * r.randint(1, 3), r.choice([0, .3])
    generator = torch.Generator().manual_seed(r.randrange(1 << 30))
    drawn = [torch.randn(batch, length, h, width, generator=generator, dtype=dtype) for h in (heads, kv_heads, kv_heads, heads)]
    whole = [t.requires_grad_(True) for t in drawn[:3]]
    out, lse = attend(*whole, scale or width ** -.5, causal)
    out.backward(drawn[3])
    here = [positions(length, ranks, causal, k) for k in range(ranks)]
    part = lambda t: [t.detach()[:, p].contiguous() for p in here]
    wanted = [part(t) for t in (out, lse, *[t.grad for t in whole])]
    got = [[torch.full_like(t, 77) for t in of] for of in wanted]
    given = [part(t) for t in drawn]
    arrays = [pointers(a) for a in given + got]
    names = ("q", "k", "v", "grad_out", "out", "lse", "grad_q", "grad_k", "grad_v")
    gather = r.random() < .4
    c = Attention(ranks=ranks, dtype=DTYPE[dtype], causal=causal, gather=gather, batch=batch, length=length, heads=heads,
                  kv_heads=kv_heads, width=width, scale=scale, **{n: address(a) for n, a in zip(names, arrays)})
    what = "attention of %s, %d ranks%s%s, %d x %d positions, %d/%d heads of %d" % (
        NAMES[dtype], ranks, ", causal" * causal, ", gathered" * gather, batch, length, heads, kv_heads, width)
    limit = 2e-5 if dtype == torch.float32 else 1e-12
    return library.tensors_attention(ctypes.byref(c)) == 0 and all(
        near(mine, theirs, limit) for a, b in zip(got, wanted) for mine, theirs in zip(a, b)), what


def layer(r):
    dtype = r.choice([torch.float32, torch.float64])
    ranks, style, table = r.randint(1, 4), r.randrange(3), r.random() < .3
    rows, width, out = r.randint(1, 12), r.randint(1, 20), r.randint(1, 20)
    head = r.choice([1, 1, 2])
    generator = torch.Generator().manual_seed(r.randrange(1 << 30))
    drawn = lambda *shape: torch.randn(*shape, generator=generator, dtype=dtype)
    with_bias = not table and r.random() < .7
    bias = drawn(out).requires_grad_(True)
    dy = drawn(rows, out)
    if table:
        x, w = torch.tensor([r.randrange(width) for _ in range(rows)], dtype=torch.int32), drawn(width, out).requires_grad_(True)
        theirs = torch.nn.functional.embedding(x.long(), w)
    else:
        x, w = drawn(rows, width).requires_grad_(True), drawn(out, width).requires_grad_(True)
        theirs = torch.nn.functional.linear(x, w, bias if with_bias else None)
    theirs.backward(dy)
    got = [torch.zeros_like(t, dtype=dtype) for t in (theirs, x, w, bias)]
    sent, left = r.choice([None, b"R", b"S0"] + [b"S1"] * (not table)), r.choice([None, b"R", b"S0", b"S1"])
    c = Layer(ranks=ranks, dtype=DTYPE[dtype], style=style, embedding=table, again=r.random() < .3, rows=rows,
              in_features=width, out_features=out, head=head, input=sent, output=left, x=x.data_ptr(), w=w.data_ptr(),
              bias=bias.data_ptr() if with_bias else None, grad_y=dy.data_ptr(), y=got[0].data_ptr(),
              grad_x=got[1].data_ptr(), grad_w=got[2].data_ptr(), grad_bias=got[3].data_ptr())
    what = "%s of %s, style %d, %d ranks, %d rows, %d to %d, %s to %s" % (
        "a table" if table else "a layer", NAMES[dtype], style, ranks, rows, width, out, sent, left)
    fine = library.tensors_layer(ctypes.byref(c)) == 0
    wanted = [theirs.detach(), None if table else x.grad, w.grad, bias.grad if with_bias else None]
    limit = 2e-5 if dtype == torch.float32 else 1e-12
    return fine and all(near(mine, t, limit) for mine, t in zip(got, wanted) if t is not None), what


def main():
    torch.set_num_threads(1)
    first, seconds = int(sys.argv[2]), float(sys.argv[3])
    print("PyTorch %s, seed %d" % (torch.__version__, first), flush=True)
    passed = failed = 0
    for name, one in (("redistributions", move), ("losses", loss), ("attention", attention), ("layers", layer)):
        end, cases, wrong = time.monotonic() + seconds, 0, 0
        while wrong < 5 and (cases < 1 or time.monotonic() < end):
            seed = first + cases
            fine, what = one(random.Random(seed))
            cases += 1
            if not fine:
                wrong += 1
                print("  seed %d: %s" % (seed, what), flush=True)
        print("%s %s: %d cases, %d differ" % ("not ok" if wrong else "ok", name, cases, wrong), flush=True)
        passed, failed = passed + (not wrong), failed + (wrong > 0)
    print("%d passed, %d failed" % (passed, failed))
    return failed != 0


sys.exit(main())
