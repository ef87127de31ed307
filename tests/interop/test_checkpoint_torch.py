# Saves with torch.distributed.checkpoint on 1, 2 and 3 ranks, reads with tools/checkpoint.c, and converts for torch.load();
# saves by one rank of examples/22_checkpoint.c, reads with PyTorch.
import os, subprocess, sys, zipfile
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
          torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2]


def tensors():
    base = torch.arange(50 * 24, dtype=torch.float32).reshape(50, 24)
    all = {f"of.{t}": (torch.arange(30) % 20).to(t).reshape(6, 5) for t in DTYPES}
    all["of.bool"] = torch.arange(6) % 2 == 0
    all["number"], all["empty"] = torch.tensor(3.5), torch.zeros(0, 4)
    all["rows"], all["columns"], all["uneven"] = base, base + 1, base[:7] + 2
    all["all"] = base + 3
    all["state.a.exp_avg"] = base[0] + 5
    return all


def save(folder):
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    all = tensors()
    for name, place in ("rows", Shard(0)), ("columns", Shard(1)), ("uneven", Shard(0)), ("all", Replicate()):
        all[name] = distribute_tensor(all[name], mesh, [place])
    all["state"] = {"a": {"exp_avg": all.pop("state.a.exp_avg"), "step": 7}, "names": ["x", "y"]}
    dcp.save(all, checkpoint_id=folder)
    dist.destroy_process_group()


if sys.argv[1] == "save":
    sys.exit(save(sys.argv[2]))

from safetensors.torch import load_file

job, tool, tmp = sys.argv[1:]
passed = failed = 0


def check(name, ok):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    print("ok" if ok else "not ok", name)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(
        a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8))


want = tensors()
for n in 1, 2, 3:
    folder, merged = os.path.join(tmp, f"torch{n}"), os.path.join(tmp, f"merged{n}.safetensors")
    env = dict(os.environ, WORLD_SIZE=str(n), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 9000 + n))
    jobs = [subprocess.Popen([sys.executable, "-W", "ignore", sys.argv[0], "save", folder], env=dict(env, RANK=str(r)),
                             stderr=subprocess.DEVNULL) for r in range(n)]
    check(f"{n} ranks save with torch.distributed.checkpoint", all(j.wait() == 0 for j in jobs))
    said = subprocess.run([tool, "merge", folder, merged], stdout=subprocess.PIPE, text=True)
    check("everything that is no tensor is a blob", said.returncode == 0 and
          sorted(said.stdout.split("left out: ")[1:]) == ["state.a.step\n", "state.names\n"] or print(said.stdout))
    got = load_file(merged) if said.returncode == 0 else {}
    check("all tensors have their names", sorted(got) == sorted(want))
    wrong = [k for k in want if k in got and not same(got[k], want[k])]
    check("and their elements", not wrong or print(wrong))

whole, half = os.path.join(tmp, "whole.pt"), os.path.join(tmp, "half.pth")
want["complex"], want['quote"ä'] = torch.tensor([1 + 2j, 3 - 4j]), torch.arange(5000)
dcp.save(dict(want), checkpoint_id=os.path.join(tmp, "all"), no_dist=True)
said = subprocess.run([tool, "convert", os.path.join(tmp, "all"), whole])
for mmap in False, True:
    got = torch.load(whole, weights_only=True, mmap=mmap) if said.returncode == 0 else {}
    check("torch.load() reads a converted file" + ", mapped" * mmap, sorted(got) == sorted(want)
          and all(same(got[k], want[k]) for k in want))
check("its sums are right", said.returncode == 0 and zipfile.ZipFile(whole).testzip() is None)
said = subprocess.run([tool, "convert", os.path.join(tmp, "all"), half, "--dtype", "f16"])
got = torch.load(half, weights_only=True) if said.returncode == 0 else {}
check("or one with rounded floats", sorted(got) == sorted(want) and same(got["rows"], want["rows"].half())
      and same(got["of.torch.int16"], want["of.torch.int16"]) and same(got["of.torch.bfloat16"], want["of.torch.bfloat16"].half()))

run = os.path.join(tmp, "run")
subprocess.run([job, "save", run], env=dict(os.environ, RANK="0", WORLD_SIZE="1"), check=True, stdout=subprocess.DEVNULL)
state = {"w": torch.zeros(50, 24), "bias": torch.zeros(24)}
reader = dcp.HuggingFaceStorageReader(os.path.join(run, "step-00000100"))
dcp.load(state, storage_reader=reader, no_dist=True)
check("PyTorch loads ours", same(state["w"], torch.arange(1200, dtype=torch.float32).reshape(50, 24))
      and same(state["bias"], torch.arange(24, dtype=torch.float32) / 2))
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
