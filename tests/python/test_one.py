# SPDX-License-Identifier: MIT-0 OR Unlicense
"""What cdp.py does in one process: memory, errors, layouts, stores, checkpoints. Ends with "N passed, N failed"."""
import array
import gc
import os
import signal
import sys
import tempfile
import threading

import numpy as np

import cdp
from tally import case, finish, raises


@case
def buffers_of_all_kinds_are_reduced_in_place():
    with cdp.init(world_size=1) as world:
        for x in (np.ones((2, 3), np.float32), array.array("d", [1, 2]), bytearray(b"ab"), np.ones(3, np.complex64)):
            before = bytes(memoryview(x).cast("B"))
            assert world.allreduce(x) is x and bytes(memoryview(x).cast("B")) == before
        out = np.zeros(3)
        assert world.allreduce(np.arange(3.0), out, op="max") is out and list(out) == [0, 1, 2]
        assert list(world.allreduce(memoryview(bytes([1, 2])), bytearray(2))) == [1, 2]  # read-only is copied


@case
def dtypes_are_those_of_numpy():
    for name, dtype in (("float16", "f16"), ("float32", "f32"), ("float64", "f64"), ("bool", "bool"),
                        ("complex64", "cf32"), ("complex128", "cf64"), *((f"{k}int{n}", f"{k or 'i'}{n}")
                        for k in ("", "u") for n in (8, 16, 32, 64))):
        m = cdp._Memory(np.zeros(4, name), True)
        assert (m.dtype, m.count) == (dtype, 4), (name, m.dtype)
    assert cdp._Memory(np.zeros(4, np.uint16), True, "bf16").count == 4


@case
def arrays_that_do_not_fit_are_refused():
    with cdp.init(world_size=1) as world:
        x = np.ones((4, 4), np.float32)
        raises(ValueError, "not contiguous", world.allreduce, x[:, :2])
        raises(ValueError, "read-only", world.allreduce, b"abc")
        raises(ValueError, "16 and 15", world.allreduce, x, np.ones(15, np.float32))
        raises(TypeError, "from f32 to f64", world.allreduce, x, np.ones((4, 4)))
        raises(TypeError, "does not give its memory", world.allreduce, [1, 2])
        raises(TypeError, "no dtype here", world.allreduce, np.zeros(2, ">f4"))
        raises(ValueError, "where the counts say 3", world.allgather, np.ones(2), np.ones(3), out_counts=[3])
        raises(ValueError, "no such|there are", world.allreduce, x, op="median")
        raises(TypeError, "has no member 'speed'", world.allreduce, x, speed=1)
        raises(TypeError, "has no member 'speed'", cdp.init, speed=1)


@case
def arrays_without_elements_or_dimensions_will_do():
    with cdp.init(world_size=1) as world:
        for x in (np.zeros(0), np.array(5.0), np.zeros((3, 0), np.float32)):
            assert world.allreduce(x) is x
        assert not world.allgather(np.zeros(0), np.zeros(0)).size
        with cdp.DDP(world, [np.zeros(0), np.zeros(3)], buffers={"mean": np.zeros(2)}) as ddp:
            with ddp.backward():
                ddp.ready(0), ddp.ready(1)
            assert ddp.grad(0).shape == (0,) and ddp.grad(-1).shape == (3,)


@case
def numpy_is_not_needed():
    there, sys.modules["numpy"] = sys.modules["numpy"], None
    try:
        square = memoryview(bytearray(16)).cast("d", (2, 1))
        with cdp.init(world_size=1) as world, cdp.DDP(world, {"a": array.array("f", [1, 2]), "b": square}) as ddp:
            with ddp.backward():
                ddp.grad("a")[0], ddp.grad("b")[1, 0] = 3.0, 4.0
                ddp.ready("a"), ddp.ready("b")
            assert ddp.grad("a").tolist() == [3, 0] and ddp.grad("b").tolist() == [[0], [4]]
    finally:
        sys.modules["numpy"] = there


@case
def errors_are_exceptions_with_the_text_of_the_library():
    with cdp.init(world_size=1) as world:
        e = raises(cdp.Unsupported, "UNSUPPORTED: .*band", world.allreduce, np.ones(2, np.float32), op="band")
        assert isinstance(e, cdp.Error) and e.peer == -1
        raises(cdp.Invalid, "INVALID: .*send", world.send, np.ones(2), to=0)
    raises(cdp.WrongState, "closed", world.allreduce, np.ones(2))
    raises(cdp.Invalid, "rank 5", cdp.init, world_size=2, rank=5, master_port=1)
    names = {c.name for c in cdp.Error.__subclasses__()}
    lib = cdp._lib()
    for status in range(-13, 0):
        assert lib.functions["cdp_status_name"](status).decode() in names, status
    assert not lib.functions["cdp_status_name"](-14).decode() in names


@case
def arrays_of_dropped_works_stay():
    with cdp.init(world_size=1) as world:
        for i in range(200):
            world.allreduce(np.ones(1000), async_op=True)
        gc.collect()
        assert world.allreduce(np.ones(1), async_op=True).wait()[0] == 1
        assert len(world._works) < 200
        work = world.barrier(async_op=True)
        work.wait()
        assert work.done()


@case
def the_library_says_where_members_are():
    lib = cdp._lib()
    assert lib.types["cdp_work"]().seq == 0 and len(lib.types) == len(cdp._structs())
    known, cdp.STRUCTS = cdp.STRUCTS, cdp.STRUCTS.replace("cdp_work group seq", "cdp_work seq group")
    try:
        raises(RuntimeError, "another version of cdp.py", cdp._Library, lib.c._name)
    finally:
        cdp.STRUCTS = known
    old = cdp._Library._row
    cdp._Library._row = lambda self: (lambda r: (r[0], r[1] + (self.row == 1), r[2]))(old(self))  # one byte longer
    try:
        raises(RuntimeError, "cdp_error of the library has members that cdp.py does not know", cdp._Library, lib.c._name)
    finally:
        cdp._Library._row = old


@case
def one_rank_trains():
    with cdp.init(world_size=1) as world:
        w = {"w": np.ones((2, 2), np.float32), "b": np.zeros(2)}
        with cdp.DDP(world, w, bucket_bytes=1 << 16) as ddp:
            with ddp.backward():
                for name in reversed(list(w)):
                    ddp.grad(name)[...] = 3
                    ddp.ready(name)
            assert ddp.grad("w").shape == (2, 2) and (ddp.grad("w") == 3).all() and (ddp.grad(1) == 3).all()
            assert abs(ddp.clip(1.0) - 3 * 6 ** 0.5) < 1e-6 and ddp.used("w")
            assert ddp.stats()["steps"] == 1 and ddp.stats()["bucket_count"] == 2
            with ddp.no_sync(), ddp.backward():
                ddp.ready("w"), ddp.ready("b")
            ddp.zero_grad()
            assert not ddp.grad("b").any()
            raises(cdp.WrongState, "STATE", ddp.ready, "w")
            raises(IndexError, "", ddp.ready, 2)
        raises(TypeError, "has no member 'lr'", cdp.DDP, world, w, lr=1)


@case
def stores():
    with tempfile.TemporaryDirectory() as folder, cdp.StoreServer() as server:
        for store in (cdp.Store.in_process(), cdp.Store.file(folder + "/store"), cdp.Store.tcp("127.0.0.1", server.port)):
            with store:
                store.set("a", b"1\0")
                assert store.get("a") == b"1\0" and store.add("n", 5) == 5 and store.add("n") == 6
                assert store.check(["a", "n"]) and not store.check(["a", "x"])
                store.append("a", b"2")
                assert store.get("a") == b"1\x002" and store.compare_set("new", b"", b"me") == b"me"
                assert sorted(k for k in store.list_keys()) == ["a", "n", "new"], store.list_keys()
                store.barrier("all", 1)
                assert store.delete("a") and not store.delete("a")
                raises(cdp.Timeout, "TIMEOUT: .*a", store.get, "a", 20)
                with store.prefix("p") as inner:
                    inner.set("k", b"v")
                assert store.get("p/k") == b"v" and store.num_keys() >= 4
        with cdp.Store.in_process() as store:
            store.push("q", b"x")
            assert store.pop("q") == b"x"


@case
def checkpoints_are_saved_loaded_and_read():
    with tempfile.TemporaryDirectory() as folder, cdp.init(world_size=1) as world:
        w, half, own = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(4, np.float16), bytearray(b"state")
        with cdp.Checkpoint(world, folder, {"w": w, "half": half}, {"rng": own}, keep=2) as ckpt:
            assert ckpt.load() is None
            raises(cdp.WrongState, "STATE", ckpt.load, 7)
            for step in (1, 2, 3):
                ckpt.save(step)
            w[:], own[:] = 0, b"other"
            assert ckpt.load() == 3 and w[1, 2] == 5 and own == b"state" and ckpt.info()["step"] == 3
        read = cdp.read_checkpoint(folder)
        assert (read["w"] == w).all() and read["half"].dtype == np.float16 and read["w"].shape == (2, 3), read
        raises(cdp.Error, "none", cdp.read_checkpoint, folder + "/none")
        listed = cdp.list_checkpoint(folder)
        assert sorted(listed) == ["half", "rng.rank00000", "w"] and listed["rng.rank00000"]["blob"], listed
        assert listed["w"] == {"dtype": "f32", "shape": (2, 3), "bytes": 24, "blob": False, "layout": None,
                               "file": "model-00001-of-00001.safetensors"}, listed
        raises(cdp.Error, "none", cdp.list_checkpoint, folder + "/none")
        wide = np.zeros(4)
        with cdp.Checkpoint(world, folder, {"half": wide}) as ckpt:
            raises(cdp.Mismatch, "f16.* in the files and f64", ckpt.load)
        with cdp.Checkpoint(world, folder, {"half": wide}, cast=True) as ckpt:
            assert ckpt.load() == 3 and (wide == 1).all() and ckpt.info()["cast"] == 1


@case
def calls_of_functions_of_this_rank():
    with cdp.init(world_size=1) as world:
        def divide(data, source):
            return bytes([100 // data[0]])
        with cdp.Rpc(world, {"divide": divide, "nothing": lambda data, source: None}) as rpc:
            assert rpc.call(0, "divide", b"\x05") == b"\x14" and rpc.call(0, "nothing") == b""
            calls = [rpc.start(0, "divide", bytes([n])) for n in range(1, 20)]
            assert [c.wait()[0] for c in calls] == [100 // n for n in range(1, 20)]
            raises(cdp.Remote, "ZeroDivisionError", rpc.call, 0, "divide", b"\0")
            raises(cdp.Unsupported, "UNSUPPORTED", rpc.call, 0, "none")
            assert not rpc._calls or len(rpc._calls) == 2
            rpc.shutdown()


@case
def ctrl_c_ends_a_wait():
    with tempfile.TemporaryDirectory() as folder:
        other = []
        thread = threading.Thread(target=lambda: other.append(cdp.init(f"file://{folder}/meet?rank=1&world_size=2")))
        thread.start()
        with cdp.init(f"file://{folder}/meet?rank=0&world_size=2") as world:
            thread.join()
            work = world.recv(np.zeros(1), source=1, async_op=True)
            assert work.wait(timeout_ms=10) is None and not work.done()
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
            raises(KeyboardInterrupt, "", lambda: (timer.start(), work.wait()))
            other[0].send(np.array([7.0]), to=0)
            assert work.wait()[0] == 7
            other[0].close()


sys.exit(finish())
