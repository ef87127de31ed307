"""One rank of the measurement of checkpoints with PyTorch's DCP over Gloo: see checkpoint.sh.

checkpoint.py FOLDER BLOCKS PASSES: the same tensors and operations as checkpoint_ranks.c; rank 0 prints "save MS", ..."""
import glob
import os
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

torch.set_num_threads(1)
folder, blocks, passes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (size,))
W = 768
BLOCK = [(W,), (W,), (3 * W, W), (3 * W,), (W, W), (W,), (W,), (W,), (4 * W, W), (4 * W,), (W, 4 * W), (W,)]
shapes = BLOCK * blocks + [(50257, W), (1024, W), (W,), (W,)]


def cut(columns):
    return {f"p{i}": distribute_tensor(torch.zeros(s), mesh, [Shard(1 if columns and len(s) == 2 else 0)])
            for i, s in enumerate(shapes)}


def forget():
    for path in glob.glob(os.path.join(folder, "theirs", "*")):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def timed(what, said, call):
    dist.barrier()
    began = time.perf_counter()
    call()
    dist.barrier()
    if said and rank == 0:
        print(f"{what} {(time.perf_counter() - began) * 1e3:.1f}", flush=True)


rows, columns, path = cut(False), cut(True), os.path.join(folder, "theirs")
for t in rows.values():
    t.to_local().uniform_()
for i in range(passes + 1):  # the first is not counted
    timed("save", i, lambda: dcp.save(rows, checkpoint_id=path))
    forget()
    timed("load", i, lambda: dcp.load(rows, checkpoint_id=path))
    forget()
    timed("load.columns", i, lambda: dcp.load(columns, checkpoint_id=path))
    dist.barrier()
    if rank == 0:
        shutil.rmtree(path)
    dist.barrier()
dist.destroy_process_group()
