#!/usr/bin/env python3
"""Golden values of tiny models, from PyTorch in double precision.

    python3 tools/golden_model.py            writes tests/engine/golden/

For each model, NAME.safetensors has init/* (F32: exactly the engine's input) and, in F64, logits (of the first
micro-batch of the first step), grad/* (of the first step, before clipping) and final/* (parameters after all steps).
NAME.json has the sizes, the tokens and labels of every micro-batch, the hyper-parameters, losses and gradient norms.
The models are plain tensor code in this file; if the transformers package is installed, its models must give the same
logits. Needs torch and numpy.
"""
import json
import math
import os
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests")
STEPS, MICRO_BATCHES, BATCH, TOKENS = 10, 3, 2, 9
HYPER = dict(lr=[1e-3 * (1 + s % 3) for s in range(STEPS)], beta1=0.9, beta2=0.95, eps=1e-5,
             weight_decay=0.1, clip=0.25)

CASES = {
    "gpt2": dict(arch="gpt2", layers=2, width=18, heads=3, kv_heads=3, head_width=6, ff=50,
                 context=11, vocab=37, tied=True, norm_eps=1e-5,
                 groups=[dict(match="*.c_proj.weight", lr_mul=0.5, wd_mul=2.0),
                         dict(match="*.wte.weight", lr_mul=2.0, wd_mul=0.0)]),
    "llama": dict(arch="llama", layers=2, width=24, heads=6, kv_heads=2, head_width=4, ff=28,
                  context=12, vocab=41, tied=True, norm_eps=1e-5, rope_theta=10000.0,
                  rope_scaling="none",
                  groups=[dict(match="*.mlp.*", lr_mul=0.5, wd_mul=2.0),
                          dict(match="*.down_proj.weight", lr_mul=1.5, wd_mul=0.5)]),
    "llama_untied": dict(arch="llama", layers=2, width=20, heads=5, kv_heads=1, head_width=4, ff=31,
                         context=12, vocab=43, tied=False, norm_eps=1e-6, rope_theta=50.0,
                         rope_scaling="llama3", rope_factor=8.0, rope_low=1.0, rope_high=4.0,
                         rope_original=64,
                         groups=[dict(match="lm_head.*", lr_mul=0.25, wd_mul=3.0),
                                 dict(match="*norm*", lr_mul=3.0, wd_mul=0.0)]),
}


# --- models: p is a dict of parameters by tensor name ---------------------------------------------

def gpt2_shapes(c):
    C, f = c["width"], c["ff"]
    yield "transformer.wte.weight", (c["vocab"], C)
    yield "transformer.wpe.weight", (c["context"], C)
    for i in range(c["layers"]):
        at = f"transformer.h.{i}."
        for name, shape in (("ln_1.weight", (C,)), ("ln_1.bias", (C,)), ("attn.c_attn.weight", (C, 3 * C)),
                            ("attn.c_attn.bias", (3 * C,)), ("attn.c_proj.weight", (C, C)),
                            ("attn.c_proj.bias", (C,)), ("ln_2.weight", (C,)), ("ln_2.bias", (C,)),
                            ("mlp.c_fc.weight", (C, f)), ("mlp.c_fc.bias", (f,)),
                            ("mlp.c_proj.weight", (f, C)), ("mlp.c_proj.bias", (C,))):
            yield at + name, shape
    yield "transformer.ln_f.weight", (C,)
    yield "transformer.ln_f.bias", (C,)


def llama_shapes(c):
    C, f, q, k = c["width"], c["ff"], c["heads"] * c["head_width"], c["kv_heads"] * c["head_width"]
    yield "model.embed_tokens.weight", (c["vocab"], C)
    for i in range(c["layers"]):
        at = f"model.layers.{i}."
        for name, shape in (("input_layernorm.weight", (C,)), ("self_attn.q_proj.weight", (q, C)),
                            ("self_attn.k_proj.weight", (k, C)), ("self_attn.v_proj.weight", (k, C)),
                            ("self_attn.o_proj.weight", (C, q)), ("post_attention_layernorm.weight", (C,)),
                            ("mlp.gate_proj.weight", (f, C)), ("mlp.up_proj.weight", (f, C)),
                            ("mlp.down_proj.weight", (C, f))):
            yield at + name, shape
    yield "model.norm.weight", (C,)
    if not c["tied"]:
        yield "lm_head.weight", (c["vocab"], C)


def attend(q, k, v):
    """Causal attention; q, k and v are (B, heads, T, D)."""
    T = q.shape[2]
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(-1) @ v


def split_heads(x, heads):
    B, T, _ = x.shape
    return x.view(B, T, heads, -1).transpose(1, 2)


def merge_heads(x):
    B, _, T, _ = x.shape
    return x.transpose(1, 2).reshape(B, T, -1)


def gpt2_logits(c, p, tokens):
    C, eps = c["width"], c["norm_eps"]
    def norm(x, at):
        return F.layer_norm(x, (C,), p[at + ".weight"], p[at + ".bias"], eps)
    def linear(x, at):
        return x @ p[at + ".weight"] + p[at + ".bias"]
    x = p["transformer.wte.weight"][tokens] + p["transformer.wpe.weight"][: tokens.shape[1]]
    for i in range(c["layers"]):
        at = f"transformer.h.{i}."
        q, k, v = linear(norm(x, at + "ln_1"), at + "attn.c_attn").split(C, -1)
        y = attend(*(split_heads(t, c["heads"]) for t in (q, k, v)))
        x = x + linear(merge_heads(y), at + "attn.c_proj")
        y = F.gelu(linear(norm(x, at + "ln_2"), at + "mlp.c_fc"), approximate="tanh")
        x = x + linear(y, at + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ p["transformer.wte.weight"].T


def rope_angles(c):
    D = c["head_width"]
    f = c["rope_theta"] ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    if c["rope_scaling"] == "llama3":
        wave = 2 * math.pi / f
        low, high, original, factor = c["rope_low"], c["rope_high"], c["rope_original"], c["rope_factor"]
        s = (original / wave - low) / (high - low)
        blend = (1 - s) * f / factor + s * f
        f = torch.where(wave < original / high, f, torch.where(wave > original / low, f / factor, blend))
    return torch.outer(torch.arange(c["context"], dtype=torch.float64), f)


def rotate(x, angles):
    a, b = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def llama_logits(c, p, tokens):
    def norm(x, at):
        return x / (x.pow(2).mean(-1, keepdim=True) + c["norm_eps"]).sqrt() * p[at + ".weight"]
    def linear(x, at):
        return x @ p[at + ".weight"].T
    angles = rope_angles(c)[: tokens.shape[1]]
    x = p["model.embed_tokens.weight"][tokens]
    for i in range(c["layers"]):
        at = f"model.layers.{i}."
        y = norm(x, at + "input_layernorm")
        q = rotate(split_heads(linear(y, at + "self_attn.q_proj"), c["heads"]), angles)
        k = rotate(split_heads(linear(y, at + "self_attn.k_proj"), c["kv_heads"]), angles)
        v = split_heads(linear(y, at + "self_attn.v_proj"), c["kv_heads"])
        k, v = (t.repeat_interleave(c["heads"] // c["kv_heads"], 1) for t in (k, v))
        x = x + linear(merge_heads(attend(q, k, v)), at + "self_attn.o_proj")
        y = norm(x, at + "post_attention_layernorm")
        y = F.silu(linear(y, at + "mlp.gate_proj")) * linear(y, at + "mlp.up_proj")
        x = x + linear(y, at + "mlp.down_proj")
    return norm(x, "model.norm") @ p["model.embed_tokens.weight" if c["tied"] else "lm_head.weight"].T


SHAPES = dict(gpt2=gpt2_shapes, llama=llama_shapes)
LOGITS = dict(gpt2=gpt2_logits, llama=llama_logits)


# --- the same logits from the transformers package, if it is installed ----------------------------

def peer_model(c):
    import transformers
    if c["arch"] == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=c["vocab"], n_positions=c["context"], n_embd=c["width"], n_layer=c["layers"],
            n_head=c["heads"], n_inner=c["ff"], layer_norm_epsilon=c["norm_eps"], resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager"))
    rope = dict(rope_type="default", rope_theta=c["rope_theta"])
    if c["rope_scaling"] == "llama3":
        rope.update(rope_type="llama3", factor=c["rope_factor"], low_freq_factor=c["rope_low"],
                    high_freq_factor=c["rope_high"], original_max_position_embeddings=c["rope_original"])
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=c["vocab"], hidden_size=c["width"], intermediate_size=c["ff"],
        num_hidden_layers=c["layers"], num_attention_heads=c["heads"], num_key_value_heads=c["kv_heads"],
        head_dim=c["head_width"], max_position_embeddings=c["context"], rms_norm_eps=c["norm_eps"],
        tie_word_embeddings=c["tied"], rope_theta=c["rope_theta"], rope_parameters=rope,
        rope_scaling=rope, attn_implementation="eager"))


def check_peer(name, c, params, tokens, logits):
    try:
        model = peer_model(c).double().eval()
    except ImportError:
        print(f"{name}: transformers is not installed, logits not compared")
        return
    missing, unexpected = model.load_state_dict(params, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    with torch.no_grad():
        theirs = model(tokens).logits.double()
    error = ((theirs - logits).norm() / logits.norm()).item()
    print(f"{name}: logits differ from transformers' by {error:.1e}")
    assert error < 2e-6, "the models disagree"          # its rotary tables are fp32


# --- data, training, files ------------------------------------------------------------------------

def initial_params(c, generator):
    params = {}
    for name, shape in SHAPES[c["arch"]](c):
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        if len(shape) == 2:
            x *= 0.25
        else:
            x = 0.1 * x + (1.0 if "weight" in name else 0.0)
        params[name] = x.float().double()
    return params


def batches(c, generator):
    """tokens, labels: (STEPS, MICRO_BATCHES, BATCH, TOKENS); later micro-batches have more valid labels."""
    shape = (STEPS, MICRO_BATCHES, BATCH, TOKENS)
    tokens = torch.randint(0, c["vocab"], shape, generator=generator)
    labels = torch.randint(0, c["vocab"], shape, generator=generator)
    keep = torch.rand(shape, generator=generator) < torch.tensor([0.3, 0.6, 1.0]).view(1, 3, 1, 1)
    labels[~keep] = -1
    counts = (labels >= 0).sum((2, 3))
    assert (counts.min(1).values < counts.max(1).values).all() and (counts > 0).all()
    return tokens, labels


def glob_match(pattern, name):
    import fnmatch
    return fnmatch.fnmatchcase(name, pattern)


def optimizer(c, params):
    groups = []
    for name, p in params.items():
        lr_mul, wd_mul = 1.0, 1.0
        for group in c["groups"]:                        # the last match wins
            if glob_match(group["match"], name):
                lr_mul, wd_mul = group["lr_mul"], group["wd_mul"]
        decay = HYPER["weight_decay"] * wd_mul if p.dim() >= 2 else 0.0
        groups.append(dict(params=[p], weight_decay=decay, lr_mul=lr_mul, lr=0.0))
    return torch.optim.AdamW(groups, betas=(HYPER["beta1"], HYPER["beta2"]), eps=HYPER["eps"], foreach=False)


def step_loss(c, params, tokens, labels):
    """The mean over the valid labels of all micro-batches of the step."""
    total = sum(F.cross_entropy(LOGITS[c["arch"]](c, params, t).flatten(0, 1), l.flatten(),
                                ignore_index=-1, reduction="sum") for t, l in zip(tokens, labels))
    return total / (labels >= 0).sum()


def train(c, params, tokens, labels):
    opt = optimizer(c, params)
    losses, norms, first = [], [], {}
    for s in range(STEPS):
        loss = step_loss(c, params, tokens[s], labels[s])
        opt.zero_grad()
        loss.backward()
        if s == 0:
            first = {name: p.grad.clone() for name, p in params.items()}
        norms.append(torch.nn.utils.clip_grad_norm_(params.values(), HYPER["clip"]).item())
        losses.append(loss.item())
        for group in opt.param_groups:
            group["lr"] = HYPER["lr"][s] * group["lr_mul"]
        opt.step()
    assert min(norms) > 1.2 * HYPER["clip"], "the clip does not bite"
    return losses, norms, first


def write_safetensors(path, tensors):
    types = {np.dtype("float32"): "F32", np.dtype("float64"): "F64"}
    header, offset = {}, 0
    for name, x in tensors.items():
        header[name] = dict(dtype=types[x.dtype], shape=list(x.shape), data_offsets=[offset, offset + x.nbytes])
        offset += x.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for x in tensors.values():
            f.write(x.tobytes())


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, separators=(",", ":"))
        f.write("\n")


def write_model(folder, name, c, seed):
    generator = torch.Generator().manual_seed(seed)
    params = initial_params(c, generator)
    tokens, labels = batches(c, generator)
    with torch.no_grad():
        logits = LOGITS[c["arch"]](c, params, tokens[0, 0])
    check_peer(name, c, params, tokens[0, 0], logits)
    tensors = {"init/" + n: p.float().numpy() for n, p in params.items()}
    tensors["logits"] = logits.numpy()
    for p in params.values():
        p.requires_grad_(True)
    losses, norms, first = train(c, params, tokens, labels)
    tensors.update({"grad/" + n: g.numpy() for n, g in first.items()})
    tensors.update({"final/" + n: p.detach().numpy() for n, p in params.items()})
    write_safetensors(os.path.join(folder, name + ".safetensors"), tensors)
    write_json(os.path.join(folder, name + ".json"),
               dict(model=c, hyper=HYPER, batch=BATCH, tokens_per_sequence=TOKENS, loss=losses, grad_norm=norms,
                    tokens=tokens.flatten(2).tolist(), labels=labels.flatten(2).tolist()))


def main():
    engine = os.path.join(ROOT, "engine", "golden")
    os.makedirs(engine, exist_ok=True)
    for seed, (name, c) in enumerate(CASES.items(), 1):
        write_model(engine, name, c, seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
