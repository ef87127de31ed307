# SPDX-License-Identifier: MIT-0 OR Unlicense
"""Ranks 1 to 3 of a job whose rank 0 is rank.c: the same calls in the same order; then, in a group of their
own, all operations beside numpy. test_ranks.py FOLDER. Ends with "rank N: C and Python agree"."""
import sys

import numpy as np

import cdp
from tally import raises


def collectives(world):
    x = np.arange(1.0, 4) * (world.rank + 1)
    world.allreduce(x)
    assert list(x) == [10, 20, 30], x
    y = np.array([77, -5], np.int32) if world.rank == 1 else np.zeros(2, np.int32)
    world.broadcast(y, root=1)
    assert list(y) == [77, -5]
    parts = np.zeros(4, np.uint16)
    world.allgather(np.array([world.rank + 1], np.uint16), parts)
    assert list(parts) == [1, 2, 3, 4]
    if world.rank == 1:
        text = world.recv(bytearray(4), source=0, tag=3)
        world.send(bytes(text).upper(), to=0, tag=4)
    assert world.allgather_bytes(b"py") == [b"C", b"py", b"py", b"py"]


def train(world):
    w = np.full(2, world.rank, np.float32)
    with cdp.DDP(world, {"w": w}) as ddp:
        assert list(w) == [0.25, 0]
        for step in range(400):
            x = np.float32(step % 10) / np.float32(10)
            err = w[0] + w[1] * x - (1 + 2 * x)
            with ddp.backward():
                ddp.grad("w")[:] = err, err * x
                ddp.ready("w")
            w -= np.float32(0.5) * ddp.grad("w")
        ddp.verify()
        world.barrier()
    assert abs(w[0] - 1) < 0.01 and abs(w[1] - 2) < 0.01, w
    return w


def calls(world):
    with cdp.Rpc(world, {"greet": lambda data, source: b"hello " + data}) as rpc:
        assert rpc.call(0, "square", b"\x0c") == b"\x90"
        assert rpc.call(world.rank % 3 + 1, "greet", b"you") == b"hello you"
        rpc.shutdown()


def checkpoint(world, folder, w):
    trained = w.copy()
    with cdp.Checkpoint(world, folder, {"w": w}) as ckpt:
        ckpt.save(100)
        w[:] = 0
        assert ckpt.load() == 100 and (w == trained).all()
    assert (cdp.read_checkpoint(folder)["w"] == trained).all()


def beside_numpy(g):
    r, n = g.rank, g.size
    all_ = [np.random.default_rng(i).integers(0, 100, 6) for i in range(n)]
    mine, total = all_[r].copy(), sum(all_)
    assert (g.allreduce(mine, np.zeros(6, np.int64)) == total).all() and (mine == all_[r]).all()
    works = [g.allreduce(all_[r].copy(), op=op, async_op=True) for op in ("max", "min", "product")]
    for work, f in zip(works, (np.max, np.min, np.prod)):
        assert (work.wait() == f(all_, axis=0)).all()
    assert np.allclose(g.allreduce(all_[r].astype(float), op="avg"), total / n)
    assert np.allclose(g.allreduce(np.ones(2), op="premul_sum", factor=r + 1.0), 6)
    bf = (np.full(5, r + 1, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    g.allreduce(bf, dtype="bf16", accumulate="f32")
    assert ((bf.astype(np.uint32) << 16).view(np.float32) == 6).all()
    assert (g.allgather(mine, np.zeros((n, 6), np.int64)) == np.stack(all_)).all()
    counts = [1, 2, 3]
    whole = g.allgather(mine[:counts[r]], np.zeros(6, np.int64), out_counts=counts)
    assert (whole == np.concatenate([a[:c] for a, c in zip(all_, counts)])).all()
    for root in range(n):
        got = g.gather(mine, np.zeros(18, np.int64) if r == root else None, root=root)
        assert r != root or (got == np.concatenate(all_)).all()
        got = g.gather(mine[:counts[r]], np.zeros(6, np.int64) if r == root else None, root=root, out_counts=counts)
        assert r != root or (got == whole).all()
        assert (g.scatter(np.arange(6) if r == root else None, np.zeros(2, np.int64), root=root) == [2 * r, 2 * r + 1]).all()
        got = g.scatter(np.arange(6) if r == root else None, np.zeros(counts[r], np.int64), root=root, in_counts=counts)
        assert list(got) == [[0], [1, 2], [3, 4, 5]][r]
        got = g.reduce(mine.copy(), np.zeros(6, np.int64) if r == root else None, root=root)
        assert r != root or (got == total).all()
        assert g.broadcast_bytes(b"x" * (root + 5) if r == root else None, root=root) == b"x" * (root + 5)
        assert g.gather_bytes(b"r" * r, root=root) == ([b"", b"r", b"rr"] if r == root else None)
        assert g.scatter_bytes([b"a", b"", b"ccc"] if r == root else None, root=root) == [b"a", b"", b"ccc"][r]
    assert (g.reduce_scatter(mine, np.zeros(2, np.int64)) == total[2 * r:2 * r + 2]).all()
    assert (g.reduce_scatter(mine, np.zeros(counts[r], np.int64), in_counts=counts) == np.split(total, [1, 3])[r]).all()
    assert (g.alltoall(mine, np.zeros(6, np.int64)) == np.concatenate([a[2 * r:2 * r + 2] for a in all_])).all()
    got = g.alltoall(np.full(6, r), np.zeros(3 * counts[r], np.int64), in_counts=counts, out_counts=[counts[r]] * 3)
    assert (got == np.repeat(range(3), counts[r])).all()
    assert (g.scan(mine.copy()) == sum(all_[:r + 1])).all()
    assert (g.exscan(mine.copy(), np.full(6, -1)) == (sum(all_[:r]) if r else -1)).all()
    got = g.sendrecv(mine, (r + 1) % n, np.zeros(6, np.int64), (r - 1) % n, tag=9)
    assert (got == all_[r - 1]).all()
    if r == 0:
        messages = [g.recv_any(np.zeros(9, np.float32), tag=5) for _ in range(2)]
        assert sorted((m.source, m.count) for m in messages) == [(1, 1), (2, 2)] and g.probe(tag=5) is None
    else:
        g.send(np.zeros(r, np.float32), to=0, tag=5)
    g.monitored_barrier()
    with g.new([0, 2]) if r != 1 else g.split(None) or g.new([1]) as part:
        if r != 1:
            g.split(None)
        assert part.allreduce(np.ones(1))[0] == part.size
    assert "timeout" in g.describe()


def main(folder):
    with cdp.init(timeout_ms=60000) as world:
        assert world.size == 4
        collectives(world)
        w = train(world)
        calls(world)
        checkpoint(world, folder, w)
        with world.split(1, world.rank) as own:
            beside_numpy(own)
            own.barrier()
        e = raises(cdp.Mismatch, "MISMATCH: .*rank", world.allreduce, np.zeros(4, np.float32))
        assert e.origin >= 0
        raises(cdp.Mismatch, "MISMATCH", world.status)
    print(f"rank {world.rank}: C and Python agree")


main(*sys.argv[1:])
