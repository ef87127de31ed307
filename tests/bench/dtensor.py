"""One rank of the measurement of redistributions with PyTorch's DTensor over Gloo: see dtensor.sh.

A line for each pair and size: PAIR BYTES LEAST_US MEDIAN_US PROCESSOR_US (of all ranks)."""
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

torch.set_num_threads(1)
seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.5
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
NAMES = {"R": Replicate(), "S0": Shard(0), "S1": Shard(1), "P": Partial()}


def places(text):
    return [NAMES[p] for p in text.split(",")]


def measure(mesh, source, target, side):
    local = [side, side]
    for dim, p in enumerate(places(source)):
        if p.is_shard():
            local[p.dim] //= mesh.size(dim)
    x = DTensor.from_local(torch.ones(local), mesh, places(source))
    to = places(target)
    for _ in range(3):
        x.redistribute(placements=to).to_local()
    used, times, flag = 0.0, [], torch.ones(1, dtype=torch.uint8)
    end = time.perf_counter() + seconds
    while flag.item() and len(times) < 1990:
        for _ in range(1 if side > 1000 else 10):
            dist.barrier()
            before, start = time.process_time(), time.perf_counter()
            x.redistribute(placements=to).to_local()
            times.append((time.perf_counter() - start) * 1e6)
            used += (time.process_time() - before) * 1e6
        flag[0] = time.perf_counter() < end
        dist.broadcast(flag, 0)
    times.sort()
    processor = torch.tensor([used / len(times)], dtype=torch.float64)
    dist.all_reduce(processor)
    if rank == 0:
        print(f"{source}->{target} {side * side * 4} {times[0]:.1f} {times[len(times) // 2]:.1f} "
              f"{processor.item():.1f}", flush=True)


line = init_device_mesh("cpu", (size,))
square = init_device_mesh("cpu", (2, 2)) if size == 4 else None
with torch.no_grad():
    for side in (512, 2048) if "--large" in sys.argv else (32, 128, 512, 2048):
        for pair in ("R->S0", "S0->R", "S1->R", "S0->S1", "P->R", "P->S0"):
            measure(line, *pair.split("->"), side)
        if square:
            for pair in ("S0,S1->S1,S0", "S0,S0->S1,S1", "S0,S0->R,S0", "R,S0->S0,R", "S0,S1->R,R", "P,S0->S0,R"):
                measure(square, *pair.split("->"), side)
dist.destroy_process_group()
