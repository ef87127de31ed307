"""Stores shared by C and Python: every operation, both ways, and both at once. test_store.py PROGRAM"""
import datetime
import random
import socket
import subprocess
import sys
import threading
import warnings

warnings.filterwarnings("ignore")
import torch
from torch.distributed import TCPStore

PROGRAM = sys.argv[1]
results = {"passed": 0, "failed": 0}


def check(name, ok, detail=""):
    results["passed" if ok else "failed"] += 1
    if not ok:
        print("not ok", name, detail)


def seconds(s):
    return datetime.timedelta(seconds=s)


class Client:
    """The C client, one line at a time."""

    def __init__(self, port):
        self.p = subprocess.Popen([PROGRAM, "client", str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.dialect = self.p.stdout.readline().strip()

    def send(self, *words):
        self.p.stdin.write(" ".join(str(w) for w in words) + "\n")
        self.p.stdin.flush()

    def answer(self):
        return self.p.stdout.readline().split()

    def __call__(self, *words):
        self.send(*words)
        return self.answer()

    def close(self):
        self.p.stdin.close()
        return self.p.wait(20)


def h(value):
    return value.hex() or "-"


def operations(where, py, c, other):
    """py: a TCPStore; c: a C client; other: one more TCPStore, for waits that the first is to end."""
    old = "1.13" in c.dialect
    binary = bytes(range(256)) * 3
    # what Python sets, C reads, and the other way round
    py.set("a/py", "one")
    check(where + " get of what Python set", c("get", "a/py", 5000) == [h(b"one"), "OK"])
    check(where + " set", c("set", "a/c", h(binary)) == ["OK"])
    check(where + " get in Python", py.get("a/c") == binary)
    c("set", "empty", "-")
    check(where + " empty value", py.get("empty") == b"" and c("get", "empty", 5000) == ["-", "OK"])
    large = bytes(i * 7 & 255 for i in range(1 << 20))
    c("set", "large", h(large))
    check(where + " 1 MiB to Python", py.get("large") == large)
    py.set("large2", "x" * (1 << 20))
    check(where + " 1 MiB from Python", c("get", "large2", 5000) == [(b"x" * (1 << 20)).hex(), "OK"])
    # counters
    sums = [py.add("n", 5), int(c("add", "n", -7)[0]), py.add("n", 1 << 40), int(c("add", "n", 1)[0])]
    check(where + " add", sums == [5, -2, (1 << 40) - 2, (1 << 40) - 1], sums)
    check(where + " a counter is text", py.get("n") == str((1 << 40) - 1).encode())
    # compare_set, all rows of its table
    rows = [("x", b"", b"first", b"first"), ("x", b"first", b"second", b"second"), ("x", b"first", b"third", b"second"), ("y", b"exp", b"des", b"exp")]
    for key, want, new, then in rows:
        check(where + " compare_set of C", c("cas", "c" + key, h(want), h(new)) == [h(then), "OK"], (key, want))
        check(where + " compare_set of Python", py.compare_set("p" + key, want.decode(), new.decode()) == then, (key, want))
    check(where + " compare_set is seen", py.get("cx") == b"second" and c("get", "px", 5000) == [h(b"second"), "OK"])
    # wait, check, delete, count
    check(where + " wait", c("wait", 5000, "a/py", "a/c", "n") == ["OK"])
    py.wait(["a/py", "cx"], seconds(5))
    check(where + " check", c("check", "a/py", "n") == ["1", "OK"] and c("check", "a/py", "nope") == ["0", "OK"])
    if hasattr(py, "check"):
        check(where + " check in Python", py.check(["a/c", "n"]) and not py.check(["a/c", "nope"]))
    before = py.num_keys()
    check(where + " num_keys", c("num") == [str(before), "OK"], before)
    check(where + " delete", c("del", "a/py") == ["1", "OK"] and c("del", "a/py") == ["0", "OK"])
    check(where + " delete in Python", py.delete_key("a/c") and not py.delete_key("a/c"))
    check(where + " keys are gone", py.num_keys() == before - 2)
    # many at once
    check(where + " multi_set", c("mset", "m1", h(b"1"), "m2", "-", "m3", h(b"333")) == ["OK"])
    check(where + " multi_set is seen", [py.get(k) for k in ("m1", "m2", "m3")] == [b"1", b"", b"333"])
    check(where + " multi_get", c("mget", 5000, "m3", "m1", "m2") == [h(b"333"), h(b"1"), "-", "OK"])
    if hasattr(py, "multi_set"):
        py.multi_set(["q1", "q2"], ["one", "two"])
        check(where + " multi_set of Python", c("mget", 5000, "q1", "q2") == [h(b"one"), h(b"two"), "OK"])
        check(where + " multi_get of Python", py.multi_get(["m1", "m3"]) == [b"1", b"333"])
    if hasattr(py, "append"):
        py.append("log", "a")
        check(where + " append", c("append", "log", h(b"bc")) == ["OK"] and py.get("log") == b"abc")
    elif old:
        check(where + " no append", c("append", "log", h(b"bc")) == ["UNSUPPORTED"])
    if hasattr(py, "list_keys"):
        check(where + " list_keys", "m1" in py.list_keys() and "a/py" not in py.list_keys())
    # waits that another one ends
    c.send("get", "late/c", 20000)
    threading.Timer(0.2, lambda: other.set("late/c", "now")).start()
    check(where + " C waits for Python", c.answer() == [h(b"now"), "OK"])
    t = threading.Timer(0.2, lambda: c("set", "late/py", h(b"too")))
    t.start()
    check(where + " Python waits for C", py.get("late/py") == b"too")
    t.join()
    # waits that nobody ends: the client is as good as before, also when the key comes later
    check(where + " C times out", c("get", "never", 100) == ["TIMEOUT"] and c("wait", 100, "m1", "never") == ["TIMEOUT"])
    c("set", "never", h(b"later"))
    check(where + " and goes on", c("get", "m1", 5000) == [h(b"1"), "OK"] and c("add", "n2", 1) == ["1", "OK"] and c("get", "never", 5000) == [h(b"later"), "OK"])
    try:
        py.wait(["never2"], seconds(1))
        check(where + " Python times out", False)
    except Exception:
        check(where + " Python times out", True)


def python_serves():
    server = TCPStore("127.0.0.1", 0, None, True, timeout=seconds(30))
    other = TCPStore("127.0.0.1", server.port, None, False, timeout=seconds(30))
    c = Client(server.port)
    check("dialect", c.dialect == ("dialect of 1.13" if torch.__version__.startswith("1.") else "dialect of 2.x"), c.dialect)
    operations("Python serves:", server, c, other)
    check("Python serves: the C client ends well", c.close() == 0)


def free_port():
    """Below those that the system gives to connections, so that nobody takes it meanwhile by chance."""
    while True:
        port = random.randrange(15000, 28000)
        with socket.socket() as s:
            try:
                s.bind(("", port))
                return port
            except OSError:
                pass


def python_waits_for_workers():
    box = []
    port = free_port()
    t = threading.Thread(target=lambda: box.append(TCPStore("127.0.0.1", port, 2, True, timeout=seconds(30))))
    t.start()
    c = Client(port)
    t.join(25)
    check("a C client counts as a worker", len(box) == 1)
    c.close()


def c_serves(key=None):
    return subprocess.Popen([PROGRAM, "serve"] + ([key] if key else []), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def c_serves_python():
    global PORT
    server = c_serves()
    PORT = int(server.stdout.readline())
    stores = [TCPStore("127.0.0.1", PORT, 4, False, timeout=seconds(30)) for _ in range(2)]
    c = Client(PORT)
    operations("C serves:", stores[0], c, stores[1])
    # after its timeout a client of Python is as good as before, once it has asked for something else
    check("C serves: Python goes on", stores[0].get("m1") == b"1")
    stores[1].set("never2", "later")
    check("C serves: Python goes on after that", stores[0].get("m1") == b"1" and stores[0].get("never2") == b"later")
    # many processes at once, each of Python and of C: no addition is lost
    code = "import sys, datetime, warnings\nwarnings.filterwarnings('ignore')\nfrom torch.distributed import TCPStore\ns = TCPStore('127.0.0.1', int(sys.argv[1]), None, False, timeout=datetime.timedelta(seconds=30))\nfor i in range(500): s.add('shared', 1)\ns.set('done' + sys.argv[2], 'x')\n"
    python = [subprocess.Popen([sys.executable, "-c", code, str(PORT), str(i)]) for i in range(2)]
    more = [Client(PORT) for _ in range(2)]
    for _ in range(500):
        for m in more:
            m.send("add", "shared", 1)
    for m in more:
        for _ in range(500):
            m.answer()
    check("C serves: Python processes come to their end", c("wait", 150000, "done0", "done1") == ["OK"])
    check("C serves: processes count together", c("add", "shared", 0) == ["2000", "OK"])
    for p in python:
        check("C serves: a Python process ends well", p.wait(60) == 0)
    for m in more:
        m.close()
    check("C serves: the C client ends well", c.close() == 0)
    server.stdin.close()
    check("C serves: the server ends well", server.wait(20) == 0)
    stores.clear()


def key_keeps_python_out():
    server = c_serves("secret")
    port = int(server.stdout.readline())
    try:
        s = TCPStore("127.0.0.1", port, None, False, timeout=seconds(2))
        s.set("k", "v")
        s.get("k")
        check("a key keeps Python out", False)
    except Exception:
        check("a key keeps Python out", True)
    server.stdin.close()
    server.wait(20)
    check("a key is asked for in the log", "a job key is needed" in server.stderr.read())


c_serves_python()
python_serves()
python_waits_for_workers()
key_keeps_python_out()
print("with torch", torch.__version__)
print("%(passed)d passed, %(failed)d failed" % results)
sys.exit(results["failed"] != 0)
