"""The training of examples/27_gpt.c with PyTorch: reads the weights of its first checkpoint, takes the same sequences of the same
text, and compares the losses of 20 steps and the weights after them, for several divisions over ranks.

test_gpt.py CDPRUN PROGRAM FOLDER TEXT    Ends with "N passed, N failed"."""
import json
import math
import re
import struct
import subprocess
import sys

import torch
import torch.nn.functional as F

LAYERS, WIDTH, HEADS, CONTEXT, BATCH, STEPS, WARMUP, RATE, SEED = 3, 48, 4, 32, 8, 20, 5, 3e-3, 7
MODEL = f"--layers {LAYERS} --width {WIDTH} --heads {HEADS} --context {CONTEXT} --batch {BATCH} --steps {STEPS}"
TRAIN = f"--warmup {WARMUP} --rate {round(RATE * 1e6)} --seed {SEED} --print 1"
DIVISIONS = [(1, ""), (4, ""), (4, "--shard 1 --micro 1"), (4, "--tensor 2 --pipeline 2"), (2, "--pipeline 2 --micro 4")]
LOSS_LIMIT, WEIGHT_LIMIT = 1e-3, 1e-3
WORD = (1 << 64) - 1


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & WORD
    return x ^ (x >> 31)


def draw(seed, a, b):
    """As in examples/text_model.h."""
    return mix((mix(mix((seed + 0x9E3779B97F4A7C15) & WORD) ^ ((a + 0x632BE59BD9B4E019) & WORD)) + b * 0x9E3779B97F4A7C15) & WORD)


def training_text(path):
    """Without every tenth piece, which is held out."""
    with open(path, "rb") as file:
        text = file.read()
    if text[-1:] != b"\n":
        text += b"\n"
    piece = min(len(text) // 10, 8192)
    pieces = [text[at:at + piece] for at in range(0, len(text), piece)]
    return torch.frombuffer(bytearray(b"".join(p for i, p in enumerate(pieces) if i % 10 != 9)), dtype=torch.uint8).long()


def read_weights(folder):
    """A file of safetensors: the length of a header, the header as JSON, the bytes."""
    with open(f"{folder}/model-00001-of-00001.safetensors", "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = bytearray(file.read())
    del header["__metadata__"]
    assert all(entry["dtype"] == "F32" for entry in header.values())
    return {name: torch.frombuffer(data[slice(*entry["data_offsets"])], dtype=torch.float32).reshape(entry["shape"]).clone()
            for name, entry in header.items()}


def norm(w, name, x):
    return F.layer_norm(x, (WIDTH,), w[name + ".weight"], w[name + ".bias"])


def linear(w, name, x):
    return F.linear(x, w[name + ".weight"], w[name + ".bias"])


def scores(w, ids):
    x = w["wte.weight"][ids] + w["wpe.weight"]
    for layer in range(LAYERS):
        h = f"h.{layer}."
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
                   for part in linear(w, h + "attn.c_attn", norm(w, h + "ln_1", x)).chunk(3, dim=-1))
        near = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5  # in plain operations, which torch 1.13 has, too
        near = near.masked_fill(torch.ones(near.shape[-2:]).triu(1).bool(), float("-inf"))
        mixed = (near.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + linear(w, h + "attn.c_proj", mixed)
        x = x + linear(w, h + "mlp.c_proj", F.gelu(linear(w, h + "mlp.c_fc", norm(w, h + "ln_2", x)), approximate="tanh"))
    return F.linear(norm(w, "ln_f", x), w["lm_head.weight"])


def rate(step):
    if step < WARMUP:
        return RATE * (step + 1) / WARMUP
    return RATE * (.1 + .9 * .5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))))


def train(w, text):
    """20 steps from these weights, which change. Returns the losses in bits per byte."""
    for value in w.values():
        value.requires_grad_(True)
    optimizer = torch.optim.AdamW([{"params": [v for v in w.values() if v.dim() > 1], "weight_decay": .1},
                                   {"params": [v for v in w.values() if v.dim() == 1], "weight_decay": 0}], betas=(.9, .95))
    losses = []
    for step in range(STEPS):
        starts = [draw(SEED ^ 0x7465787473657175, step, i) % (len(text) - CONTEXT) for i in range(BATCH)]
        rows = torch.stack([text[at:at + CONTEXT + 1] for at in starts])
        loss = F.cross_entropy(scores(w, rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(w.values(), 1)
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()
        losses.append(loss.item() / math.log(2))
    return losses


def run(cdprun, program, folder, text, ranks, division):
    command = [cdprun, "-n", str(ranks), program, *MODEL.split(), *TRAIN.split(), *division.split(), "--save", folder, text]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if said.returncode:
        print(said.stdout[-2000:], said.stderr[-2000:])
    return [float(x) for x in re.findall(r"all: step \d+ of \d+, ([0-9.]+) bits", said.stdout)]


def main():
    cdprun, program, folder, path = sys.argv[1:]
    torch.set_num_threads(1)
    text, first, failed = training_text(path), None, 0
    for number, (ranks, division) in enumerate(DIVISIONS):
        saved = f"{folder}/run{number}"
        ours = run(cdprun, program, saved, path, ranks, division)
        good, what = len(ours) == STEPS, f"{len(ours)} losses"
        if good:
            begin, end = (read_weights(f"{saved}/step-{step:08}") for step in (0, STEPS))
            if first is None:
                first, w = begin, {name: value.clone() for name, value in begin.items()}
                theirs = train(w, text)
            same = all(torch.equal(begin[name], first[name]) for name in w)
            loss = max(abs(a - b) for a, b in zip(ours, theirs))
            weight = max((end[name] - w[name]).abs().max().item() for name in w)
            what = f"{theirs[0]:.4f} to {theirs[-1]:.4f} bits per byte; losses differ by {loss:.1e}, weights by {weight:.1e} at most"
            good = same and loss < LOSS_LIMIT and weight < WEIGHT_LIMIT and set(end) == set(w)
        failed += not good
        print(f"{'ok' if good else 'not ok'} {ranks} ranks {division or '--shard ' + str(ranks)}: {what}", flush=True)
    print(f"{len(DIVISIONS) - failed} passed, {failed} failed")
    return failed != 0


sys.exit(main())
