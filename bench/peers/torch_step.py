"""The peer of bench/cpu-step: training steps in PyTorch on the CPU, in one process that stays.

    python3 torch_step.py --threads 2 --size 124M --batch 4 --seq 256 --vocab 50304
Prints {"torch": its version, "slow_bf16": whether bf16 only costs time on this CPU}. Then it reads commands from its
input, one a line, and answers each with a line of JSON:
    warm eager|compiled fp32|bf16           the first step of a way, which is not timed; of a compiled one the compilation
    step eager|compiled fp32|bf16 SECONDS   steps for SECONDS, at least one: {"seconds": [...], "peak_mib": ...}
    product fp32|bf16 SECONDS               2048^3 products for SECONDS: {"gflops": of the median one}
bf16 is autocast. All ways train one model with one fused AdamW. A way that fails answers {"error": "..."}.
"""
import argparse, json, os, resource, statistics, sys, time
import torch, torch.nn as nn
from torch_gpt import Model, shape_of


class Steps:
    def __init__(s, o):
        s.o = o
        s.model = Model("gpt2", shape_of("gpt2", o.size), o.vocab, o.seq)
        decay = [p for p in s.model.parameters() if p.dim() >= 2]
        rest = [p for p in s.model.parameters() if p.dim() < 2]
        groups = [dict(params=decay, weight_decay=0.1), dict(params=rest, weight_decay=0)]
        s.optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)
        s.forward = {"eager": s.model, "compiled": torch.compile(s.model)}

    def one(s, way, dtype):
        x = torch.randint(0, s.o.vocab, (s.o.batch, s.o.seq + 1))
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            loss = s.forward[way](x[:, :-1], x[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(s.model.parameters(), 1.0)
        s.optimizer.step()
        s.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start

    def run(s, way, dtype, seconds):
        took = []
        while not took or sum(took) < float(seconds):
            took.append(s.one(way, dtype))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {"seconds": took, "peak_mib": round(peak)}


def product(dtype, seconds, side=2048):
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    a, b = torch.randn(side, side).to(kind), torch.randn(side, side).to(kind)
    c = a @ b
    took = []
    while len(took) < 3 or sum(took) < seconds:
        start = time.perf_counter()
        torch.matmul(a, b, out=c)
        took.append(time.perf_counter() - start)
    return {"gflops": 2e-9 * side**3 / statistics.median(took)}


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--threads", type=int, required=True)
    a.add_argument("--size", default="124M"); a.add_argument("--vocab", type=int, default=50304)
    a.add_argument("--batch", type=int, default=4); a.add_argument("--seq", type=int, default=256)
    o = a.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is not an answer
    torch.set_num_threads(o.threads)
    torch.manual_seed(0)
    steps = Steps(o)
    # without instructions for bf16, PyTorch's products of bf16 are tens of times slower, and a step takes minutes
    small = {dtype: product(dtype, 0, 256)["gflops"] for dtype in ("fp32", "bf16")}
    answers.write(json.dumps({"torch": torch.__version__, "slow_bf16": small["bf16"] < 0.2 * small["fp32"]}) + "\n")
    for line in sys.stdin:
        name, *words = line.split()
        try:
            if name == "product":
                answer = product(words[0], float(words[1]))
            else:
                answer = steps.run(*words, *[0] * (name == "warm"))
        except Exception as error:  # a compiler that is missing, for example
            text = str(error).strip() or type(error).__name__
            answer = {"error": text.splitlines()[0]}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
