# Saves by one rank of examples/22_checkpoint.c, reads with safetensors; writes with safetensors, reads with tools/checkpoint.c.
import json, os, subprocess, sys
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

job, tool, tmp = sys.argv[1:]
passed = failed = 0


def check(name, ok):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    print("ok" if ok else "not ok", name)


run = os.path.join(tmp, "run")
env = dict(os.environ, RANK="0", WORLD_SIZE="1")
subprocess.run([job, "save", run], env=env, check=True, stdout=subprocess.DEVNULL)
step = os.path.join(run, "step-00000100")
index = json.load(open(os.path.join(step, "model.safetensors.index.json")))
check("the index names both tensors", sorted(index["weight_map"]) == ["bias", "w"])
check("and their size", index["metadata"]["total_size"] == (50 * 24 + 24) * 4)
with safe_open(os.path.join(step, index["weight_map"]["w"]), "np") as f:
    w, bias = f.get_tensor("w"), f.get_tensor("bias")
check("a matrix", w.dtype == np.float32 and np.array_equal(w, np.arange(1200, dtype=np.float32).reshape(50, 24)))
check("a vector", np.array_equal(bias, np.arange(24, dtype=np.float32) / 2))
with safe_open(os.path.join(step, "blobs.safetensors"), "np") as f:
    check("bytes of the program", f.get_tensor("note").tobytes() == b"the loss was 2.5")

other = os.path.join(tmp, "other")
os.mkdir(other)
save_file({"w": w, "bias": bias}, os.path.join(other, "model.safetensors"), {"format": "np"})
save_file({"note": np.frombuffer(b"the loss was 2.5", np.uint8)}, os.path.join(other, "blobs.safetensors"))
check("a folder of safetensors' own is equal", subprocess.run([tool, "compare", run, other], stdout=subprocess.DEVNULL).returncode == 0)
w[7, 3] += 1
save_file({"w": w, "bias": bias}, os.path.join(other, "model.safetensors"))
said = subprocess.run([tool, "compare", run, other], stdout=subprocess.PIPE, text=True)
check("and after a change is not", said.returncode == 1 and "w: other elements\n1 differences" in said.stdout)
many = {t: np.arange(6).astype(t).reshape(2, 3) for t in "u1 i1 u2 i2 u4 i4 u8 i8 f2 f4 f8 ?".split()}
many["empty"], many["\u00e4 \"\\"] = np.zeros((0, 4), np.float32), np.array(3.0)
save_file(many, os.path.join(tmp, "many.safetensors"))
said = subprocess.run([tool, "list", os.path.join(tmp, "many.safetensors")], stdout=subprocess.PIPE, text=True)
check("all dtypes, an empty tensor, a number, a name", said.returncode == 0 and all(n in said.stdout for n in many))
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
