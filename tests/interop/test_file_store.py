"""One file, used by torch.distributed.FileStore and by file_store.c at once.

test_file_store.py PROGRAM FOLDER    PROGRAM is the compiled file_store.c. Ends with "N passed, N failed"."""
import datetime
import gc
import os
import random
import subprocess
import sys
import threading

import torch.distributed as dist

PROGRAM, FOLDER = sys.argv[1:3]


class User:
    """A process of file_store.c."""

    def __init__(self, path, *more):
        self.p = subprocess.Popen([PROGRAM, path, *map(str, more)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True)
        assert self.p.stdout.readline() == "OK -\n"

    def start(self, *words):
        self.p.stdin.write(" ".join(map(str, words)) + "\n")
        self.p.stdin.flush()

    def end(self):
        return self.p.stdout.readline().split()

    def __call__(self, *words):
        self.start(*words)
        return self.end()

    def get(self, key, ms=10000):
        status, value = self("get", key or "-", ms)
        return bytes.fromhex(value.replace("-", "")) if status == "OK" else status

    def set(self, key, value):
        assert self("set", key or "-", value.hex() or "-")[0] == "OK"

    def leave(self):
        self.p.stdin.close()
        assert self.p.wait(20) == 0


def file_at(name, world=-1):
    path = os.path.join(FOLDER, name)
    store = dist.FileStore(path, world)
    store.set_timeout(datetime.timedelta(seconds=10))
    return path, store


def both_ways():
    path, theirs = file_at("both")
    theirs.set("before", "b")
    ours = User(path)
    assert ours.get("before") == b"b"
    ours.set("k", b"\0\xff\n/")
    assert theirs.get("k") == b"\0\xff\n/"
    ours.set("", b"")
    assert theirs.get("") == b""
    theirs.set("e", "")
    assert ours.get("e") == b""
    assert theirs.add("n", 5) == 5 and ours("add", "n", -7) == ["OK", "-2"] and theirs.add("n", 1) == -1
    assert theirs.compare_set("x", "", "one") == b"one"
    assert ours("cas", "x", b"one".hex(), b"two".hex()) == ["OK", b"two".hex()]
    assert theirs.compare_set("x", "one", "three") == b"two"
    assert ours("cas", "absent", b"q".hex(), b"z".hex()) == ["OK", b"q".hex()]
    assert ours("append", "x", b"!".hex())[0] == "OK" and theirs.get("x") == b"two!"
    assert ours("num")[1] == str(theirs.num_keys())
    theirs.delete_key("k")
    assert ours("check", "k") == ["OK", "0"] and ours.get("k", 20) == "TIMEOUT"
    theirs.set("k", "back")
    assert ours("check", "k") == ["OK", "1"] and ours("delete", "k") == ["OK", "1"] and ours("delete", "k") == ["OK", "0"]
    theirs.set_timeout(datetime.timedelta(milliseconds=100))
    try:
        theirs.get("k")
        raise AssertionError("a deleted key is there")
    except RuntimeError:
        pass
    big = bytes(random.Random(1).randrange(256) for _ in range(30000))
    ours.set("big", big)
    assert theirs.get("big") == big
    ours.leave()


def same_bytes():
    """The same calls leave the same records, byte for byte, behind the counter of users."""
    path, theirs = file_at("theirs")
    theirs.set("k", "v"), theirs.add("n", 5), theirs.add("n", -7), theirs.delete_key("k"), theirs.compare_set("x", "", "f"), theirs.set("", "")
    ours = User(path + "2")
    ours.set("k", b"v"), ours("add", "n", 5), ours("add", "n", -7), ours("delete", "k"), ours("cas", "x", "-", b"f".hex()), ours.set("", b"")
    a, b = open(path, "rb").read(), open(path + "2", "rb").read()
    assert b[:18] == b"\x09\0\0\0refcount/\x01\0\0\x001"[:18] and b[18:] == a, (a, b)
    ours.leave()


def random_program():
    """Both sides take turns at random; a dictionary says what must come out."""
    path, theirs = file_at("random")
    ours, model, r = User(path), {}, random.Random(7)
    for _ in range(1500):
        key, op, c = r.choice(["a", "b", "c", "d/e"]), r.randrange(6), r.random() < 0.5
        text = r.choice(["", "x", "12", "-3", "abc" * r.randrange(50)])
        now = model.get(key)
        if op == 0:
            ours.set(key, text.encode()) if c else theirs.set(key, text)
            model[key] = text
        elif op == 1 and key in model:
            assert (ours.get(key) if c else theirs.get(key)) == now.encode()
        elif op == 2 and (now is None or now in ("12", "-3") or now.lstrip("-").isdigit()):
            n = int(now or 0) + 4
            assert (int(ours("add", key, 4)[1]) if c else theirs.add(key, 4)) == n
            model[key] = str(n)
        elif op == 3:
            want = now or ""
            expected = want if r.random() < 0.5 else "other"
            got = bytes.fromhex(ours("cas", key, expected.encode().hex() or "-", text.encode().hex() or "-")[1].replace("-", "")) if c else theirs.compare_set(key, expected, text)
            if expected == want and (now is not None or expected == ""):
                model[key] = now = text
            assert got == (expected if now is None else now).encode(), (key, now, expected, text, got)
        elif op == 4:
            ours("delete", key) if c else theirs.delete_key(key)
            model.pop(key, None)
        else:
            assert int(ours("check", key)[1]) == (key in model)
            assert int(ours("num")[1]) == theirs.num_keys() == len(model) + 1
    ours.leave()


def at_once():
    """Many adds from four processes; none is lost."""
    path, theirs = file_at("at_once")
    users = [User(path) for _ in range(3)]
    for u in users:
        u.start("adds", "sum", 400)
    thread = threading.Thread(target=lambda: [theirs.add("sum", 1) for _ in range(400)])
    thread.start()
    for u in users:
        assert u.end()[0] == "OK"
    thread.join()
    assert theirs.add("sum", 0) == 1600
    for u in users:
        u.leave()


def waiting():
    path, theirs = file_at("waiting")
    ours = User(path)
    ours.start("get", "late", 10000)
    theirs.set("late", "l")
    assert ours.end() == ["OK", b"l".hex()]
    thread = threading.Thread(target=lambda: theirs.wait(["later"]))
    thread.start()
    ours.set("later", b"1")
    thread.join(10)
    assert not thread.is_alive()
    ours.leave()


def prefixes():
    path, theirs = file_at("prefixes")
    ours = User(path, 0, "outer/in")
    inner = dist.PrefixStore("in", dist.PrefixStore("outer", theirs))
    inner.set("k", "v")
    assert ours.get("k") == b"v"
    ours.set("l", b"w")
    assert inner.get("l") == b"w" and theirs.get("outer/in/l") == b"w"
    ours.leave()


def last_one_removes_it():
    path, theirs = file_at("last", 2)
    ours = User(path, 2)
    theirs.set("k", "v")
    ours.leave()
    assert os.path.exists(path)
    del theirs
    gc.collect()
    assert not os.path.exists(path)
    path, theirs = file_at("last", 2)
    ours = User(path, 2)
    ours.set("k", b"v")
    assert theirs.get("k") == b"v"
    del theirs
    gc.collect()
    assert os.path.exists(path)
    ours.leave()
    assert not os.path.exists(path)


def half_a_record():
    """What a killed user left is cut off before PyTorch, which does not know such a thing, writes behind it."""
    path, theirs = file_at("half")
    ours = User(path)
    theirs.set("k", "v")
    with open(path, "ab") as f:
        f.write(b"\x02\0\0\0/z\x09\0\0\0half")
    assert ours.get("k") == b"v"
    theirs.set("after", "it")
    assert ours.get("after") == b"it" and theirs.get("after") == b"it" and ours("check", "z") == ["OK", "0"]
    ours.leave()


def main():
    passed = failed = 0
    for test in (both_ways, same_bytes, random_program, at_once, waiting, prefixes, last_one_removes_it, half_a_record):
        try:
            test()
            passed += 1
            print("ok %s" % test.__name__)
        except Exception as e:  # noqa: BLE001
            failed += 1
            print("not ok %s: %r (line %d)" % (test.__name__, e, e.__traceback__.tb_next.tb_lineno))
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
