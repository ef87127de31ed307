# SPDX-License-Identifier: MIT-0 OR Unlicense
"""Rank 1 ends without a word; the others say who is lost, and go on without it."""
import os

import numpy as np

import cdp

world = cdp.init(timeout_ms=60000)
world.barrier()
if world.rank == 1:
    os._exit(3)
try:
    world.allreduce(np.zeros(1000))
except cdp.PeerLost as e:
    assert e.peer == 1 and "rank 1" in str(e), (e.peer, e)
    left = world.new([0, 2])
    assert left.allreduce(np.ones(1))[0] == 2
    left.close()
    print(f"rank {world.rank}: rank 1 is lost")
world.close()
