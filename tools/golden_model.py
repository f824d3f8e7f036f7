#!/usr/bin/env python3
"""Golden values of tiny models, from PyTorch in double precision.

    python3 tools/golden_model.py [NAME...]     writes tests/engine/golden/, all models or these

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

def family(arch, **keys):
    """A small model of a family that shares Llama's names; its file has single precision."""
    case = dict(arch=arch, layers=2, width=16, heads=4, kv_heads=2, head_width=6, ff=20, context=12, vocab=29, tied=False,
                norm_eps=1e-5, rope_theta=100.0, rope_scaling="none", narrow=True,
                groups=[dict(match="*.mlp.*", lr_mul=0.5, wd_mul=2.0), dict(match="*norm*", lr_mul=2.0, wd_mul=0.0)])
    return dict(case, **keys)


CASES.update(
    qwen2=family("qwen2", tied=True),
    llama_biases=family("llama", attention_bias=True, mlp_bias=True),
    qwen3=family("qwen3", attention_bias=True),
    smollm3=family("smollm3", nope_every=2, mlp_bias=True),
    olmo2=family("olmo2", attention_bias=True),
    phi3=family("phi3", window=5),
    gemma3=family("gemma3", window=4, full_every=2, query_scalar=10, rope_local=7.0, tied=True),
    gpt2_exact=dict(CASES["gpt2"], width=12, ff=26, head_width=4, vocab=29, exact=True, narrow=True),
    mistral=family("mistral", window=4, tied=True),
    gemma2=family("gemma2", window=4, full_every=2, query_scalar=10, cap=2.0, final_cap=3.0, tied=True, attention_bias=True),
)


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


# How the families that share Llama's names differ from it.
TRAITS = dict(
    llama={}, mistral={}, smollm3={},
    qwen2=dict(qkv_bias=True),
    qwen3=dict(qk_norm="head"),
    phi3=dict(fused=True),
    olmo2=dict(qk_norm="whole", pre=None, mid=None, post1="post_attention_layernorm", post2="post_feedforward_layernorm"),
    gemma2=dict(pre="input_layernorm", mid="pre_feedforward_layernorm", post1="post_attention_layernorm",
                post2="post_feedforward_layernorm", plus_one=True, gelu=True, scaled=True),
)
TRAITS["gemma3"] = dict(TRAITS["gemma2"], qk_norm="head")


def trait(c, name):
    """A trait of the family, or a key of the case."""
    fallback = dict(pre="input_layernorm", mid="post_attention_layernorm").get(name)
    return c.get(name, TRAITS.get(c["arch"], {}).get(name, fallback))


def llama_layer(c):
    C, f, D = c["width"], c["ff"], c["head_width"]
    q, k = c["heads"] * D, c["kv_heads"] * D
    for norm in ("pre", "post1", "mid", "post2"):
        if trait(c, norm):
            yield trait(c, norm) + ".weight", (C,)
    if trait(c, "fused"):
        yield "self_attn.qkv_proj.weight", (q + 2 * k, C)
        yield "mlp.gate_up_proj.weight", (2 * f, C)
    else:
        for name, rows in (("q", q), ("k", k), ("v", k)):
            yield f"self_attn.{name}_proj.weight", (rows, C)
            if trait(c, "qkv_bias") or c.get("attention_bias"):
                yield f"self_attn.{name}_proj.bias", (rows,)
        for name in ("gate", "up"):
            yield f"mlp.{name}_proj.weight", (f, C)
            if c.get("mlp_bias"):
                yield f"mlp.{name}_proj.bias", (f,)
    if trait(c, "qk_norm"):
        whole = trait(c, "qk_norm") == "whole"
        yield "self_attn.q_norm.weight", (q if whole else D,)
        yield "self_attn.k_norm.weight", (k if whole else D,)
    yield "self_attn.o_proj.weight", (C, q)
    yield "mlp.down_proj.weight", (C, f)
    if c.get("attention_bias"):
        yield "self_attn.o_proj.bias", (C,)
    if c.get("mlp_bias"):
        yield "mlp.down_proj.bias", (C,)


def llama_shapes(c):
    yield "model.embed_tokens.weight", (c["vocab"], c["width"])
    for i in range(c["layers"]):
        for name, shape in llama_layer(c):
            yield f"model.layers.{i}." + name, shape
    yield "model.norm.weight", (c["width"],)
    if not c["tied"]:
        yield "lm_head.weight", (c["vocab"], c["width"])


def attend(q, k, v, scale=None, cap=None, window=0):
    """Causal attention; q, k and v are (B, heads, T, D)."""
    T = q.shape[2]
    scores = q @ k.transpose(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1]))
    if cap:
        scores = cap * torch.tanh(scores / cap)
    ones = torch.ones(T, T, dtype=torch.bool)
    hidden = ones.triu(1) | ones.tril(-window) if window else ones.triu(1)
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v


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
        y = F.gelu(linear(norm(x, at + "ln_2"), at + "mlp.c_fc"), approximate="none" if c.get("exact") else "tanh")
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


def is_every(i, every):
    """Whether layer i is one of each `every` layers, the last of them."""
    return every and (i + 1) % every == 0


def llama_attention(c, p, i, y):
    at, heads, kv_heads = f"model.layers.{i}.self_attn.", c["heads"], c["kv_heads"]
    q, k = heads * c["head_width"], kv_heads * c["head_width"]
    if trait(c, "fused"):
        q, k, v = llama_linear(p, y, at + "qkv_proj").split((q, k, k), -1)
    else:
        q, k, v = (llama_linear(p, y, at + name) for name in ("q_proj", "k_proj", "v_proj"))
    if trait(c, "qk_norm") == "whole":
        q, k = (rms_norm(c, x, p[at + name]) for x, name in ((q, "q_norm.weight"), (k, "k_norm.weight")))
    q, k, v = split_heads(q, heads), split_heads(k, kv_heads), split_heads(v, kv_heads)
    if trait(c, "qk_norm") == "head":
        q, k = (rms_norm(c, x, p[at + name]) for x, name in ((q, "q_norm.weight"), (k, "k_norm.weight")))
    window = 0 if is_every(i, c.get("full_every")) else c.get("window", 0)
    if not is_every(i, c.get("nope_every")):
        local = dict(c, rope_theta=c["rope_local"]) if window and c.get("rope_local") else c
        angles = rope_angles(local)[: y.shape[1]]
        q, k = rotate(q, angles), rotate(k, angles)
    k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
    scale = c["query_scalar"] ** -0.5 if c.get("query_scalar") else None
    return llama_linear(p, merge_heads(attend(q, k, v, scale, c.get("cap"), window)), at + "o_proj")


def llama_mlp(c, p, i, y):
    at = f"model.layers.{i}.mlp."
    if trait(c, "fused"):
        gate, up = llama_linear(p, y, at + "gate_up_proj").chunk(2, -1)
    else:
        gate, up = llama_linear(p, y, at + "gate_proj"), llama_linear(p, y, at + "up_proj")
    gate = F.gelu(gate, approximate="tanh") if trait(c, "gelu") else F.silu(gate)
    return llama_linear(p, gate * up, at + "down_proj")


def rms_norm(c, x, weight):
    return x / (x.pow(2).mean(-1, keepdim=True) + c["norm_eps"]).sqrt() * (weight + (1 if trait(c, "plus_one") else 0))


def llama_linear(p, x, at):
    return x @ p[at + ".weight"].T + p.get(at + ".bias", 0)


def llama_logits(c, p, tokens):
    def norm(x, i, which):
        return rms_norm(c, x, p[f"model.layers.{i}.{trait(c, which)}.weight"]) if trait(c, which) else x
    x = p["model.embed_tokens.weight"][tokens] * (math.sqrt(c["width"]) if trait(c, "scaled") else 1)
    for i in range(c["layers"]):
        x = x + norm(llama_attention(c, p, i, norm(x, i, "pre")), i, "post1")
        x = x + norm(llama_mlp(c, p, i, norm(x, i, "mid")), i, "post2")
    x = rms_norm(c, x, p["model.norm.weight"])
    logits = x @ p["model.embed_tokens.weight" if c["tied"] else "lm_head.weight"].T
    return c["final_cap"] * torch.tanh(logits / c["final_cap"]) if c.get("final_cap") else logits


SHAPES = dict(gpt2=gpt2_shapes, **{arch: llama_shapes for arch in TRAITS})
LOGITS = dict(gpt2=gpt2_logits, **{arch: llama_logits for arch in TRAITS})


# --- the same logits from the transformers package, if it is installed ----------------------------

def peer_model(c):
    import transformers
    if c["arch"] == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=c["vocab"], n_positions=c["context"], n_embd=c["width"], n_layer=c["layers"],
            n_head=c["heads"], n_inner=c["ff"], activation_function="gelu" if c.get("exact") else "gelu_new", layer_norm_epsilon=c["norm_eps"], resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager"))
    rope = dict(rope_type="default", rope_theta=c["rope_theta"])
    if c["rope_scaling"] == "llama3":
        rope.update(rope_type="llama3", factor=c["rope_factor"], low_freq_factor=c["rope_low"],
                    high_freq_factor=c["rope_high"], original_max_position_embeddings=c["rope_original"])
    if c.get("rope_local"):
        rope = dict(full_attention=rope, sliding_attention=dict(rope_type="default", rope_theta=c["rope_local"]))
    names = dict(llama="Llama", mistral="Mistral", qwen2="Qwen2", qwen3="Qwen3", smollm3="SmolLM3", phi3="Phi3",
                 olmo2="Olmo2", gemma2="Gemma2", gemma3="Gemma3")
    name = names[c["arch"]]
    config = dict(
        vocab_size=c["vocab"], hidden_size=c["width"], intermediate_size=c["ff"],
        num_hidden_layers=c["layers"], num_attention_heads=c["heads"], num_key_value_heads=c["kv_heads"],
        head_dim=c["head_width"], max_position_embeddings=c["context"], rms_norm_eps=c["norm_eps"],
        tie_word_embeddings=c["tied"], rope_parameters=rope, attn_implementation="eager", pad_token_id=None,
        bos_token_id=None, eos_token_id=None, **peer_keys(c))
    return getattr(transformers, name + "ForCausalLM")(
        getattr(transformers, name + ("TextConfig" if name == "Gemma3" else "Config"))(**config))


def peer_keys(c):
    """Keys of config.json that not every family has."""
    keys = {key: c[key] for key in ("attention_bias", "mlp_bias") if key in c}
    if c["arch"] in ("mistral", "phi3", "gemma2", "gemma3"):
        keys["sliding_window"] = c.get("window") or None
    if c["arch"] in ("gemma2", "gemma3"):
        keys.update(query_pre_attn_scalar=c["query_scalar"], attn_logit_softcapping=c.get("cap"),
                    final_logit_softcapping=c.get("final_cap"), hidden_activation="gelu_pytorch_tanh",
                    layer_types=["full_attention" if is_every(i, c["full_every"]) else "sliding_attention"
                                 for i in range(c["layers"])])
    if c["arch"] == "smollm3":
        keys.update(no_rope_layers=[0 if is_every(i, c["nope_every"]) else 1 for i in range(c["layers"])])
    return keys


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
            x = 0.1 * x + (1.0 if "weight" in name and not trait(c, "plus_one") else 0.0)
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
    kind = np.float32 if c.get("narrow") else np.float64
    tensors.update({"grad/" + n: g.numpy().astype(kind) for n, g in first.items()})
    tensors.update({"final/" + n: p.detach().numpy().astype(kind) for n, p in params.items()})
    write_safetensors(os.path.join(folder, name + ".safetensors"), tensors)
    write_json(os.path.join(folder, name + ".json"),
               dict(model=c, hyper=HYPER, batch=BATCH, tokens_per_sequence=TOKENS, loss=losses, grad_norm=norms,
                    tokens=tokens.flatten(2).tolist(), labels=labels.flatten(2).tolist()))


def main():
    engine = os.path.join(ROOT, "engine", "golden")
    os.makedirs(engine, exist_ok=True)
    for seed, (name, c) in enumerate(CASES.items(), 1):
        if len(sys.argv) == 1 or name in sys.argv[1:]:
            write_model(engine, name, c, seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
