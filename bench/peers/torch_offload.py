"""The peer of bench/offload: PyTorch FSDP with CPU offload on one GPU. Parameters, gradients and
optimizer state are in pinned host memory; the CPU updates with the fused AdamW.

    python3 torch_offload.py --size llama3B --batch 4 --seq 2048 --accumulate 4
Prints tokens/s (median step) and the peak memory of the GPU.
"""
import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch_gpt import Model, shape_of


def start(m, o):
    """Memory and initial values: a repeated block of random numbers, since only the speed is asked for."""
    m.to_empty(device="cpu")
    block = torch.randn(1 << 20) * 0.02
    with torch.no_grad():
        for p in m.parameters():
            flat = p.to_local().view(-1)
            for at in range(0, flat.numel(), block.numel()):
                part = flat[at:at + block.numel()]
                part.copy_(block[:part.numel()] if p.dim() == 2 else torch.ones(part.numel()))
    if o.arch == "llama":
        d = shape_of(o.arch, o.size)[4]
        f = torch.outer(torch.arange(o.seq).float(), 10000 ** (-torch.arange(0, d, 2).float() / d))
        m.cos, m.sin = f.cos().cuda(), f.sin().cuda()


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--arch", default="llama")
    a.add_argument("--size", default="llama3B")
    a.add_argument("--batch", type=int, default=4)
    a.add_argument("--seq", type=int, default=2048)
    a.add_argument("--vocab", type=int, default=50304)
    a.add_argument("--accumulate", type=int, default=1)
    a.add_argument("--steps", type=int, default=3)
    o = a.parse_args()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1")
    torch.cuda.set_device(0)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.manual_seed(0)
    with torch.device("meta"):  # values drawn one by one on a core would take minutes
        m = Model(o.arch, shape_of(o.arch, o.size), o.vocab, o.seq)
    policy = dict(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
                  offload_policy=CPUOffloadPolicy(pin_memory=True))
    for b in m.blocks:
        fully_shard(b, **policy)
    fully_shard(m, **policy)
    start(m, o)
    opt = torch.optim.AdamW(m.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    g = torch.Generator(device="cuda").manual_seed(0)
    times = []
    for i in range(o.steps + 1):
        torch.cuda.synchronize()
        t = time.perf_counter()
        for k in range(o.accumulate):
            m.set_requires_gradient_sync(k == o.accumulate - 1)  # sums stay on the GPU until the last
            x = torch.randint(0, o.vocab, (o.batch, o.seq + 1), generator=g, device="cuda")
            loss = m(x[:, :-1], x[:, 1:])
            (loss / o.accumulate).backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        if i > 0:
            times.append(time.perf_counter() - t)
    dt = statistics.median(times)
    tokens = o.accumulate * o.batch * o.seq
    print(f"torch {torch.__version__} fsdp, cpu offload, {o.size} {o.accumulate} x {o.batch} x {o.seq}: {dt:.2f} s/step "
          f"{tokens / dt:,.0f} tok/s peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
