"""Snapshots of cdp_mem.h read by Python's pickle, and by PyTorch's own functions where they are.

   interop.py FOLDER [_memory_viz.py]     Ends with "N passed, N failed"."""
import contextlib
import glob
import importlib.util
import io
import os
import pickle
import pickletools
import sys

folder = sys.argv[1]
viz_path = sys.argv[2] if len(sys.argv) > 2 else None
passed = failed = 0
# what the viewer's own unpickler has
VIEWER = {"PROTO", "FRAME", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "BININT1", "BININT2", "BININT", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE",
          "EMPTY_LIST", "MARK", "APPENDS", "APPEND", "LIST", "EMPTY_DICT", "SETITEMS", "SETITEM", "DICT", "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
          "TUPLE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "MEMOIZE"}


def check(name, func):
    global passed, failed
    try:
        func()
        passed += 1
        print("ok", name)
    except Exception as e:  # whatever it is, it is a failure of this check
        failed += 1
        print("not ok %s: %s: %s" % (name, type(e).__name__, e))


def load(path):
    with open(path, "rb") as f:
        return pickle.load(f)


def structure(path):
    data = load(path)
    with open(path, "rb") as f:
        used = {op.name for op, _, _ in pickletools.genops(f)}
    assert used <= VIEWER, used - VIEWER
    assert set(data) >= {"segments", "device_traces", "allocator_settings", "external_annotations"}
    assert data["segments"]
    for s in data["segments"]:
        assert s["segment_type"] in ("small", "large") and len(s["segment_pool_id"]) == 2 and isinstance(s["segment_pool_id"], tuple)
        assert s["total_size"] == sum(b["size"] for b in s["blocks"])
        at = s["address"]
        for b in s["blocks"]:
            assert b["address"] == at and b["state"] in ("active_allocated", "active_pending_free", "inactive")
            at += b["size"]
        assert s["allocated_size"] == sum(b["size"] for b in s["blocks"] if b["state"] == "active_allocated")
        assert s["active_size"] == sum(b["size"] for b in s["blocks"] if b["state"] != "inactive")
        assert s["requested_size"] == sum(b["requested_size"] for b in s["blocks"] if b["state"] != "inactive")
    for t in data["device_traces"]:
        for e in t:
            assert "device_free" in e if e["action"] == "oom" else isinstance(e["addr"], int)
            for f in e.get("frames", []):
                assert isinstance(f["filename"], str) and isinstance(f["name"], str) and isinstance(f["line"], int)
    # without the snapshot and the note: 1 oom each, allocs and frees in balance with what lives
    if "overwritten" not in path and "state" not in path:
        trace = data["device_traces"][0]
        live = set()
        for e in trace:
            if e["action"] == "alloc":
                assert e["addr"] not in live
                live.add(e["addr"])
            if e["action"] == "free_completed":
                live.remove(e["addr"])
        held = {b["address"] for s in data["segments"] if not s.get("is_external") for b in s["blocks"] if b["state"] != "inactive"}
        assert live == held, (len(live), len(held))


def torch_functions(viz, path, before):
    data = load(path)
    raw = lambda lines, flamegraph_script=None: lines  # the script comes from the network
    whole = data if hasattr(viz, "trace") else data["segments"]  # PyTorch 1.13 had segments alone
    assert "seg_" in viz.segments(whole, format_flamegraph=raw)
    assert "active_allocated" in viz.memory(whole, format_flamegraph=raw)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints addresses
        viz.compare(before["segments"], data["segments"], format_flamegraph=raw)
    if hasattr(viz, "segsum"):
        assert "segments:" in viz.segsum(data) and "total_allocated:" in viz.segsum(data)
    if hasattr(viz, "trace") and data["device_traces"][0]:
        text = viz.trace(data)
        assert "cudaMalloc" in text and "OutOfMemoryError" in text
    for name in ("trace_plot", "segment_plot"):
        if hasattr(viz, name):
            page = getattr(viz, name)(load(path))
            assert "MemoryViz" in page and len(page) > 1000


files = sorted(glob.glob(os.path.join(folder, "*.pickle")))
files = [f for f in files if not f.endswith("before.pickle")]
if len(files) < 8:
    print("not ok files: only %d" % len(files))
    failed += 1
for path in files:
    check("pickle " + os.path.basename(path), lambda: structure(path))
if viz_path:
    spec = importlib.util.spec_from_file_location("memory_viz_of_pytorch", viz_path)
    viz = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(viz)
    before = load(os.path.join(folder, "before.pickle"))
    for path in files:
        check("_memory_viz.py " + os.path.basename(path), lambda: torch_functions(viz, path, before))
print("%d passed, %d failed" % (passed, failed))
sys.exit(failed > 0)
