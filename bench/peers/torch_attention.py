"""The peer of bench/gpu-attention: PyTorch's scaled_dot_product_attention, causal, in bf16.

    python3 torch_attention.py BATCH LENGTH HEADS HEAD_WIDTH [DEVICE]
One JSON line per variant, with the median seconds of a forward and of a backward pass: `cudnn`, and
`deterministic`, the first of cuDNN, flash and memory-efficient attention that runs with
torch.use_deterministic_algorithms(True). Tensors are views of one (B, T, 3, H, D) array, as in a model.
"""
import json, statistics, sys, time
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

batch, length, heads, width = (int(n) for n in sys.argv[1:5])
device = sys.argv[5] if len(sys.argv) > 5 else "cuda"
CUDNN, OTHERS = SDPBackend.CUDNN_ATTENTION, [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


def seconds_of(call, count=20):
    """Median over samples of a few calls each; on a GPU by events."""
    times = []
    for i in range(count + 3):
        if device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(); call(); end.record()
            torch.cuda.synchronize()
            seconds = begin.elapsed_time(end) / 1e3
        else:
            start = time.perf_counter(); call()
            seconds = time.perf_counter() - start
        if i >= 3:
            times.append(seconds)
    return statistics.median(times)


def measure(backend):
    qkv = torch.randn(batch, length, 3, heads, width, device=device, dtype=torch.bfloat16, requires_grad=True)
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    dout = torch.randn(batch, heads, length, width, device=device, dtype=torch.bfloat16)
    with sdpa_kernel([backend]):
        forward = seconds_of(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        leaves = (q, k, v)
        backward = seconds_of(lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True))
    return forward, backward


def report(variant, backends):
    for backend in backends:
        try:
            forward, backward = measure(backend)
        except RuntimeError: # not available for this shape, or not deterministic
            continue
        print(json.dumps({"variant": variant, "forward": forward, "backward": backward,
                          "name": backend.name.lower().replace("_attention", "")}), flush=True)
        return


report("cudnn", [CUDNN] if device == "cuda" else [SDPBackend.MATH])
torch.use_deterministic_algorithms(True)
report("deterministic", [CUDNN, *OTHERS] if device == "cuda" else [SDPBackend.MATH])
