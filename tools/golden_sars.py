#!/usr/bin/env python3
"""Golden values of SARS (surprise-aware routing shaping) on tiny models, from PyTorch in double precision.

    python3 tools/golden_sars.py                  writes sars and sars_heads in tests/engine/golden/
    python3 tools/golden_sars.py --check FILE     recomputes tests/engine/golden/NAME.json from its inputs and compares

A routing layer on X, one for each kind q, k, v, o of a block:

    A = X Wmu^T + b;  ell = X S^T / sqrt(d) - mas(g);  M = [ell > 0];  O = silu(A) M;  mas(x) = x / (max |x| + 1e-9)
    S of block 0 is P; above, S = P + LayerNorm(S of the block below, times Wt^T; gam, bet)

Phase 1 differentiates the main loss by Theta (embedding, head, norms, Wmu, b) with M constant. With gO = dLoss/dO:
G = u (mas(ell) - k), u = mas(|gO|), k = mas(|gO| |x|). Phase 2 differentiates the meta loss by Phi (P, g) with G
constant: the mean over modules and tokens of the entropy of softmax(ell + sign G). The gate keeps rows of Wmu's and b's
gradient whose sum of G over tokens is positive. Theta's gradient is clamped; AdamW updates Theta and Phi. Wt, gam and
bet are frozen. All micro-batches of a step count as one batch: loss / labels of the step, entropy / tokens of the step.

    sign          +1 or -1
    gate          global: by the sums of the whole step; local: each micro-batch's gradient by its own sums; off
    standardise   G becomes (G - mean) / sqrt(var + 1e-5) over the neurons of a token, in phase 2 only

NAME.safetensors has init/* (F32), and in F64 logits (first micro-batch), raw/* (Theta's gradient of the first step,
before gate and clamp), grad/* (what AdamW gets in the first step), final/* (after all steps), and for every step, as
(steps, layers, 4, width): goodness (sums of G), keep (gate bits), active (tokens a neuron is on for). NAME.json has the
sizes, tokens, labels (-1: none), losses, norms and shares; its variants start from the same init and have losses, norms
and for each trained final tensor its sum and the sum of its absolute values.

The hand-written backward pass is compared with autograd and with finite differences, AdamW with PyTorch's. Batches are
drawn until every discontinuity has a margin, and the same run in float32 must set the same bits. Needs torch and numpy.
"""
import json
import math
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F

from golden_model import write_json, write_safetensors

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "engine", "golden")
KINDS = "qkvo"
MAS_EPS = LOG_EPS = 1e-9
STEPS, MICRO_BATCHES, BATCH, TOKENS = 10, 3, 2, 7
HYPER = dict(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01, clamp=1.0)
MARGIN = 1e-4
RULE = dict(sign=1, gate="global", standardise=False)
CASES = {
    "sars": dict(arch="sars", layers=3, width=12, heads=1, context=TOKENS, vocab=17, norm_eps=1e-5, meta_weight=1.0),
    "sars_heads": dict(arch="sars", layers=2, width=10, heads=2, context=TOKENS, vocab=19, norm_eps=1e-5,
                       meta_weight=1.0),
}
VARIANTS = {
    "local": dict(RULE, gate="local"),
    "off": dict(RULE, gate="off"),
    "minus": dict(RULE, sign=-1),
    "standardise": dict(RULE, standardise=True),
}
VARIANT_STEPS = 4


# --- tensors --------------------------------------------------------------------------------------

def module(layer, kind):
    return f"model.layers.{layer}.self_attn.{kind}_proj."


def shapes(c):
    d = c["width"]
    yield "model.embed_tokens.weight", (c["vocab"], d)
    for l in range(c["layers"]):
        for name in ("weight", "bias"):
            yield f"model.layers.{l}.input_layernorm.{name}", (d,)
        for kind in KINDS:
            for name, shape in (("mu_weight", (d, d)), ("mu_bias", (d,)), ("proto_weight", (d, d)),
                                ("gate_param", (d,)), ("proto_transform.weight", (d, d)),
                                ("proto_norm.weight", (d,)), ("proto_norm.bias", (d,))):
                yield module(l, kind) + name, shape
    yield "lm_head.weight", (c["vocab"], d)


def in_phi(name):
    return name.endswith(("proto_weight", "gate_param"))


def is_frozen(name):
    return "proto_transform" in name or "proto_norm" in name


def in_theta(name):
    return not in_phi(name) and not is_frozen(name)


def is_gated(name):
    return name.endswith(("mu_weight", "mu_bias"))


def initial_params(c, generator):
    """Large enough that every path matters; in a real model matrices start at 0.02 and gates at 0."""
    scales = dict(gate_param=0.5, embed_tokens=4.0, lm_head=0.4, mu_weight=0.6, proto_transform=0.3)
    params = {}
    for name, shape in shapes(c):
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        x *= next((s for word, s in scales.items() if word in name), 0.25 if len(shape) == 2 else 0.1)
        x += 1.0 if "norm.weight" in name else -0.3 if "gate_param" in name else 0.0
        params[name] = x.float().double()
    return params


# --- the formulas, forward and backward by hand ---------------------------------------------------

def mas(x):
    return x / (x.abs().amax(-1, keepdim=True) + MAS_EPS)


def mas_backward(dy, x):
    """One vector; the derivative of the maximum belongs to the lowest index that has it."""
    size = x.abs()
    at = int((size == size.max()).nonzero()[0])
    scale = size[at] + MAS_EPS
    dx = dy / scale
    dx[at] -= x[at].sign() * (dy * x).sum() / scale**2
    return dx


def norm_rows(x, weight, bias, eps):
    """Returns y and what the backward pass needs."""
    centered = x - x.mean(-1, keepdim=True)
    rstd = 1 / ((centered * centered).mean(-1, keepdim=True) + eps).sqrt()
    unit = centered * rstd
    return unit * weight + bias, (unit, rstd)


def norm_rows_backward(dy, weight, kept):
    unit, rstd = kept
    d = dy * weight
    return rstd * (d - d.mean(-1, keepdim=True) - unit * (d * unit).mean(-1, keepdim=True))


def heads_of(x, heads):
    """(B, T, d) as (B, heads, T, d / heads)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def rows_of(x):
    return x.transpose(1, 2).flatten(2)


def attend(q, k, v, heads):
    q, k, v = (heads_of(x, heads) for x in (q, k, v))
    T = q.shape[2]
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf)
    weights = scores.softmax(-1)
    return rows_of(weights @ v), weights


def attend_backward(dout, q, k, v, weights, heads):
    dout, q, k, v = (heads_of(x, heads) for x in (dout, q, k, v))
    dweights = dout @ v.transpose(-1, -2)
    dscores = weights * (dweights - (dweights * weights).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
    return dict(q=rows_of(dscores @ k), k=rows_of(dscores.transpose(-1, -2) @ q),
                v=rows_of(weights.transpose(-1, -2) @ dout))


def chain(c, p):
    """Prototypes S (layers, by kind), and what the backward pass of the chain needs."""
    S, kept = [], []
    for l in range(c["layers"]):
        S.append({})
        kept.append({})
        for n in KINDS:
            at = module(l, n)
            S[l][n] = p[at + "proto_weight"]
            if l > 0:
                R, kept[l][n] = norm_rows(S[l - 1][n] @ p[at + "proto_transform.weight"].T,
                                          p[at + "proto_norm.weight"], p[at + "proto_norm.bias"], c["norm_eps"])
                S[l][n] = S[l][n] + R
    return S, kept


def route(c, p, S, l, n, x, mask=None):
    """A routing layer; what it computes, for the backward pass. A mask that is given replaces the computed one."""
    at = module(l, n)
    r = dict(x=x, A=x @ p[at + "mu_weight"].T + p[at + "mu_bias"])
    r["ell"] = x @ S[l][n].T / math.sqrt(c["width"]) - mas(p[at + "gate_param"])
    r["mask"] = (r["ell"] > 0).to(x.dtype) if mask is None else mask
    r["out"] = r["A"] * r["A"].sigmoid() * r["mask"]
    return r


def forward(c, p, S, tokens, masks=None):
    """Logits, and per block what the backward pass needs; masks: (layers, by kind), or None."""
    x = p["model.embed_tokens.weight"][tokens]
    blocks = []
    for l in range(c["layers"]):
        at = f"model.layers.{l}.input_layernorm."
        given = masks[l] if masks else dict.fromkeys(KINDS)
        h, norm = norm_rows(x, p[at + "weight"], p[at + "bias"], c["norm_eps"])
        b = dict(norm=norm)
        for n in "qkv":
            b[n] = route(c, p, S, l, n, h, given[n])
        attended, b["weights"] = attend(*(b[n]["out"] for n in "qkv"), c["heads"])
        b["o"] = route(c, p, S, l, "o", attended, given["o"])
        x = x + b["o"]["out"]
        blocks.append(b)
    return x @ p["lm_head.weight"].T, x, blocks


def goodness(r, dout):
    length = r["x"].norm(dim=-1, keepdim=True)
    return mas(dout.abs()) * (mas(r["ell"]) - mas(dout.abs() * length))


def shift(rule, G):
    """What phase 2 adds to ell."""
    if rule["standardise"]:
        G = (G - G.mean(-1, keepdim=True)) / (G.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    return rule["sign"] * G


def entropy_of(z):
    share = z.softmax(-1)
    return -(share * (share + LOG_EPS).log()).sum(-1), share


def entropy_backward(share, scale):
    e = -(share + LOG_EPS).log() - share / (share + LOG_EPS)
    return scale * share * (e - (share * e).sum(-1, keepdim=True))


def least(x):
    """The smallest size that is not zero. A neuron or a row without gradient has sums of exactly zero in any type."""
    return float(x[x != 0].abs().min()) if (x != 0).any() else math.inf


def flat(x):
    return x.flatten(0, -2)


class Step:
    """Sums over the micro-batches of one step."""

    def __init__(self, c, rule, p, tokens, labels):
        self.c, self.rule, self.p = c, rule, p
        self.labels = int((labels >= 0).sum())
        self.meta_scale = c["meta_weight"] / (len(KINDS) * c["layers"] * tokens.numel())
        self.S, self.chain_kept = chain(c, p)
        self.raw = {name: torch.zeros_like(x) for name, x in p.items() if not is_frozen(name)}
        self.gated = {name: x.clone() for name, x in self.raw.items() if is_gated(name)}  # by each micro-batch's gate
        zero = torch.zeros(c["layers"], len(KINDS), c["width"], dtype=p["lm_head.weight"].dtype)
        self.s, self.dc, self.active = zero.clone(), zero.clone(), zero.clone()
        self.s_local = []
        self.entropy = torch.zeros(c["layers"], len(KINDS), dtype=zero.dtype)  # sums over tokens
        self.loss = 0.0
        self.least = dict(ell=math.inf, gO=math.inf)
        for t, y in zip(tokens, labels):
            self.micro_batch(t, y)
        self.phase2_chain()
        self.meta_loss = float(self.entropy.sum()) * self.meta_scale
        self.keep = (self.s > 0).to(zero.dtype)
        self.grad = self.gate_and_clamp()

    def micro_batch(self, tokens, labels):
        self.s_local.append(torch.zeros_like(self.s))
        logits, x, blocks = forward(self.c, self.p, self.S, tokens)
        valid = (labels >= 0).to(x.dtype).unsqueeze(-1)
        target = F.one_hot(labels.clamp(min=0), self.c["vocab"]).to(x.dtype)
        self.loss += float(-(valid * target * logits.log_softmax(-1)).sum()) / self.labels
        dlogits = valid * (logits.softmax(-1) - target) / self.labels
        self.raw["lm_head.weight"] += flat(dlogits).T @ flat(x)
        dx = dlogits @ self.p["lm_head.weight"]
        for l in reversed(range(self.c["layers"])):
            dx = self.block(l, blocks[l], dx)
        self.raw["model.embed_tokens.weight"].index_add_(0, tokens.flatten(), flat(dx))

    def block(self, l, b, dx):
        datt = self.routing_layer(l, "o", b["o"], dx)
        douts = attend_backward(datt, *(b[n]["out"] for n in "qkv"), b["weights"], self.c["heads"])
        dh = sum(self.routing_layer(l, n, b[n], douts[n]) for n in "qkv")
        at = f"model.layers.{l}.input_layernorm."
        self.raw[at + "weight"] += flat(dh * b["norm"][0]).sum(0)
        self.raw[at + "bias"] += flat(dh).sum(0)
        return dx + norm_rows_backward(dh, self.p[at + "weight"], b["norm"])

    def routing_layer(self, l, n, r, dout):
        """Phase 1 of the layer, then what phase 2 needs from its tokens."""
        at, i = module(l, n), KINDS.index(n)
        sigmoid = r["A"].sigmoid()
        dA = dout * r["mask"] * sigmoid * (1 + r["A"] * (1 - sigmoid))
        dweight, dbias = flat(dA).T @ flat(r["x"]), flat(dA).sum(0)
        G = goodness(r, dout)
        s = flat(G).sum(0)
        for name, d in (("mu_weight", dweight), ("mu_bias", dbias)):
            self.raw[at + name] += d
            self.gated[at + name] += d * (s > 0).to(d.dtype).view(-1, *[1] * (d.dim() - 1))
        H, share = entropy_of(r["ell"] + shift(self.rule, G))
        dell = entropy_backward(share, self.meta_scale)
        self.raw[at + "proto_weight"] += flat(dell).T @ flat(r["x"]) / math.sqrt(self.c["width"])
        self.dc[l, i] -= flat(dell).sum(0)
        self.s[l, i] += s
        self.s_local[-1][l, i] = s
        self.active[l, i] += flat(r["mask"]).sum(0)
        self.entropy[l, i] += H.sum()
        self.note_margins(r["ell"], dout, G)
        return dA @ self.p[at + "mu_weight"]

    def note_margins(self, ell, dout, G):
        assert -2 <= float(G.min()) and float(G.max()) <= 1 and not (G[ell <= 0] > 0).any()
        self.least["ell"] = min(self.least["ell"], least(ell / ell.abs().max()))
        self.least["gO"] = min(self.least["gO"], least(dout.abs().amax(-1)))

    def phase2_chain(self):
        for n in KINDS:
            for l in reversed(range(self.c["layers"])):
                at = module(l, n)
                self.raw[at + "gate_param"] = mas_backward(self.dc[l, KINDS.index(n)], self.p[at + "gate_param"])
                if l > 0:
                    dZ = norm_rows_backward(self.raw[at + "proto_weight"], self.p[at + "proto_norm.weight"],
                                            self.chain_kept[l][n])
                    self.raw[module(l - 1, n) + "proto_weight"] += dZ @ self.p[at + "proto_transform.weight"]

    def gate_and_clamp(self):
        grad = dict(self.raw)
        if self.rule["gate"] == "local":
            grad.update(self.gated)
        for l in range(self.c["layers"]):
            for i, n in enumerate(KINDS):
                keep, at = self.keep[l, i], module(l, n)
                if self.rule["gate"] == "global":
                    grad[at + "mu_weight"] = grad[at + "mu_weight"] * keep[:, None]
                    grad[at + "mu_bias"] = grad[at + "mu_bias"] * keep
        return {name: g.clamp(-HYPER["clamp"], HYPER["clamp"]) if in_theta(name) else g for name, g in grad.items()}

    def gate_sums(self):
        return self.s_local if self.rule["gate"] == "local" else [self.s]

    def bits(self):
        """What is decided by comparing with zero; for the masks, how often each neuron is on."""
        return torch.cat([self.active.flatten(), *((s > 0).to(s.dtype).flatten() for s in self.gate_sums())])

    def margins(self):
        """Smallest sizes, each relative to the largest of its vector (gO: absolute, of rows that are not zero)."""
        gates = torch.stack([torch.stack([self.p[module(l, n) + "gate_param"] for n in KINDS])
                             for l in range(self.c["layers"])]).abs().sort(-1).values
        return dict(ell=self.least["ell"], gO=self.least["gO"],
                    s=min(least(s / s.abs().amax(-1, keepdim=True)) for s in self.gate_sums()),
                    dc=least(self.dc / self.dc.abs().amax(-1, keepdim=True)),
                    g=float(((gates[..., -1] - gates[..., -2]) / gates[..., -1]).min()))


class AdamW:
    def __init__(self, p):
        self.m = {name: torch.zeros_like(x) for name, x in p.items() if not is_frozen(name)}
        self.v = {name: torch.zeros_like(x) for name, x in self.m.items()}
        self.t = 0

    def step(self, p, grads):
        """Every trained tensor decays, vectors too."""
        h = HYPER
        self.t += 1
        for name, g in grads.items():
            m = self.m[name] = h["beta1"] * self.m[name] + (1 - h["beta1"]) * g
            v = self.v[name] = h["beta2"] * self.v[name] + (1 - h["beta2"]) * g * g
            m, v = m / (1 - h["beta1"] ** self.t), v / (1 - h["beta2"] ** self.t)
            p[name] = p[name] - h["lr"] * (m / (v.sqrt() + h["eps"]) + h["weight_decay"] * p[name])


# --- the same by autograd -------------------------------------------------------------------------

def peer_forward(c, p, tokens):
    """Written again with PyTorch's functions. Returns logits, and (l, n, x, ell, out) of every module."""
    d, eps = c["width"], c["norm_eps"]
    x, proto, modules = F.embedding(tokens, p["model.embed_tokens.weight"]), {}, []

    def layer(l, n, x):
        at = module(l, n)
        state = p[at + "proto_weight"]
        if l > 0:
            state = state + F.layer_norm(F.linear(proto[n, l - 1], p[at + "proto_transform.weight"]), (d,),
                                         p[at + "proto_norm.weight"], p[at + "proto_norm.bias"], eps)
        proto[n, l] = state
        g = p[at + "gate_param"]
        ell = F.linear(x, state) / d**0.5 - g / (g.abs().max() + MAS_EPS)
        computed = F.silu(F.linear(x, p[at + "mu_weight"], p[at + "mu_bias"]))
        out = torch.where(ell > 0, computed, torch.zeros_like(computed))
        modules.append((l, n, x, ell, out))
        return out

    for l in range(c["layers"]):
        at = f"model.layers.{l}.input_layernorm."
        h = F.layer_norm(x, (d,), p[at + "weight"], p[at + "bias"], eps)
        q, k, v = (layer(l, n, h).unflatten(-1, (c["heads"], -1)).transpose(1, 2) for n in "qkv")
        # Not F.scaled_dot_product_attention: its gradient of a sequence's first query is rounding instead of zero.
        scores = torch.einsum("bhtd,bhsd->bhts", q, k) / (d / c["heads"]) ** 0.5
        later = torch.arange(tokens.shape[1])[:, None] < torch.arange(tokens.shape[1])
        y = (F.softmax(scores.masked_fill(later, -math.inf), -1) @ v).transpose(1, 2).flatten(2)
        x = x + layer(l, "o", y)
    return F.linear(x, p["lm_head.weight"]), modules


def peer_goodness(x, ell, dout):
    """Row by row."""
    G = torch.zeros_like(ell)
    for at in np.ndindex(*ell.shape[:-1]):
        importance = abs(dout[at])
        cost = importance * math.sqrt(float(x[at] @ x[at]))
        belief = ell[at] / (max(abs(ell[at])) + MAS_EPS)
        G[at] = importance / (max(importance) + MAS_EPS) * (belief - cost / (max(cost) + MAS_EPS))
    return G


def peer_shift(rule, G):
    return rule["sign"] * (F.layer_norm(G, G.shape[-1:], eps=1e-5) if rule["standardise"] else G)


def peer_gradients(c, rule, params, tokens, labels):
    """Losses, raw gradients and goodness sums of a step."""
    p = {name: x.clone().requires_grad_(not is_frozen(name)) for name, x in params.items()}
    theta = [name for name in p if in_theta(name)]
    phi = [name for name in p if in_phi(name)]
    main, modules = 0, []
    for t, y in zip(tokens, labels):
        logits, more = peer_forward(c, p, t)
        main = main + F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-1, reduction="sum")
        modules += more
    main = main / (labels >= 0).sum()
    found = torch.autograd.grad(main, [p[name] for name in theta] + [out for *_, out in modules], retain_graph=True)
    grads = dict(zip(theta, found))
    s = torch.zeros(c["layers"], len(KINDS), c["width"], dtype=torch.float64)
    total = 0
    for (l, n, x, ell, _), dout in zip(modules, found[len(theta):]):
        with torch.no_grad():
            G = peer_goodness(x, ell, dout)
            s[l, KINDS.index(n)] += G.flatten(0, 1).sum(0)
        share = F.softmax(ell + peer_shift(rule, G), -1)
        total = total - torch.einsum("btj,btj->", share, torch.log(share + LOG_EPS))
    meta = c["meta_weight"] * total / (len(KINDS) * c["layers"] * tokens.numel())
    grads.update(zip(phi, torch.autograd.grad(meta, [p[name] for name in phi])))
    return main.item(), meta.item(), grads, s


def worst(found, exact):
    """Largest difference of two dicts of tensors, relative to the largest element of the tensor."""
    assert found.keys() == exact.keys(), found.keys() ^ exact.keys()
    return max((float((found[name].double() - x.double()).abs().max() / x.double().abs().max().clamp(min=1e-30)), name)
               for name, x in exact.items())


def check_autograd(c, rule, p, tokens, labels, step):
    main, meta, grads, s = peer_gradients(c, rule, p, tokens, labels)
    difference = max(worst(step.raw, grads)[0], worst(dict(s=step.s), dict(s=s))[0],
                     abs(step.loss / main - 1), abs(step.meta_loss / meta - 1))
    assert difference < 1e-12, f"autograd differs by {difference:.1e}: {worst(step.raw, grads)[1]}"
    return difference


def check_adamw(p):
    """Three steps with PyTorch's AdamW."""
    mine, opt = dict(p), AdamW(p)
    theirs = {name: x.clone().requires_grad_(True) for name, x in p.items() if not is_frozen(name)}
    peer = torch.optim.AdamW(theirs.values(), lr=HYPER["lr"], betas=(HYPER["beta1"], HYPER["beta2"]), eps=HYPER["eps"],
                             weight_decay=HYPER["weight_decay"])
    for t in range(3):
        for i, x in enumerate(theirs.values()):
            x.grad = torch.sin(torch.arange(x.numel(), dtype=torch.float64) + t + i).view_as(x) * 10.0 ** (i % 9 - 8)
        opt.step(mine, {name: x.grad for name, x in theirs.items()})
        peer.step()
    difference = worst({name: mine[name] for name in theirs}, {name: x.detach() for name, x in theirs.items()})[0]
    assert difference < 1e-14, f"AdamW differs by {difference:.1e}"


# --- finite differences ---------------------------------------------------------------------------

def check_differences(c, rule, p, tokens, labels, step):
    """Along random directions of each tensor: phase 1 with masks constant, phase 2 with G constant too."""
    S, _ = chain(c, p)
    masks, shifts = [], []
    for t, y in zip(tokens, labels):
        _, _, blocks = forward(c, p, S, t)
        masks.append([{n: b[n]["mask"] for n in KINDS} for b in blocks])
        shifts.append([{} for _ in blocks])
    find_shifts(c, rule, p, tokens, labels, shifts)

    def losses(p):
        S, _ = chain(c, p)
        main = meta = 0.0
        for t, y, mask, add in zip(tokens, labels, masks, shifts):
            logits, _, blocks = forward(c, p, S, t, mask)
            main += float(F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-1, reduction="sum"))
            meta += sum(float(entropy_of(b[n]["ell"] + a[n])[0].sum()) for b, a in zip(blocks, add) for n in KINDS)
        return main / step.labels, meta * step.meta_scale

    generator, h, largest = torch.Generator().manual_seed(5), 2e-4, 0.0
    for name, grad in step.raw.items():
        for _ in range(2):
            way = torch.randn(grad.shape, generator=generator, dtype=torch.float64) * grad.abs().max().clamp(min=1e-12)
            way = way / way.norm()
            f = [losses({**p, name: p[name] + k * h * way})[in_phi(name)] for k in (-2, -1, 1, 2)]
            slope = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h)   # error h^4
            largest = max(largest, abs(slope - float((grad * way).sum())) / float(grad.norm()))
    assert largest < 1e-6, f"finite differences differ by {largest:.1e}"
    return largest


def find_shifts(c, rule, p, tokens, labels, shifts):
    """What phase 2 adds to ell, by autograd: shifts[micro-batch][layer][kind]."""
    p = {name: x.clone().requires_grad_(True) for name, x in p.items()}
    for t, y, add in zip(tokens, labels, shifts):
        logits, modules = peer_forward(c, p, t)
        main = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-1, reduction="sum")
        found = torch.autograd.grad(main / (labels >= 0).sum(), [out for *_, out in modules])
        for (l, n, x, ell, _), dout in zip(modules, found):
            with torch.no_grad():
                add[l][n] = peer_shift(rule, peer_goodness(x, ell, dout))


# --- runs -----------------------------------------------------------------------------------------

def draw(c, generator):
    """tokens, labels: (MICRO_BATCHES, BATCH, TOKENS). Few different labels, so that the clamp acts on the head."""
    shape = (MICRO_BATCHES, BATCH, TOKENS)
    tokens = torch.randint(0, c["vocab"], shape, generator=generator)
    labels = torch.randint(0, 3, shape, generator=generator) * 5 % c["vocab"]
    keep = torch.rand(shape, generator=generator) < torch.tensor([0.4, 0.7, 1.0]).view(3, 1, 1)
    labels[~keep] = -1
    return tokens, labels


def acceptable(tokens, labels, margins):
    """Scores of a query that sees one key, or only equal keys, have a gradient of exactly zero. It becomes rounding
    noise in an attention that sums dout * out, and mas makes noise large. So only first queries are such queries (the
    second token differs: there are no positions), and first keys have other gradients too (a label follows)."""
    counts = (labels >= 0).sum((1, 2))
    return (len(set(counts.tolist())) > 1 and (labels[..., 1:] >= 0).any(-1).all()
            and (tokens[..., 0] != tokens[..., 1]).all()
            and margins["gO"] > 1e-6 and min(margins[name] for name in ("ell", "s", "dc", "g")) > MARGIN)


def train(c, rule, params, data, visit=None):
    """Steps over data (steps of tokens and labels). Returns the steps and the final parameters."""
    p, opt, steps = dict(params), AdamW(params), []
    for tokens, labels in data:
        step = Step(c, rule, p, tokens, labels)
        if visit:
            visit(p, tokens, labels, step)
        steps.append(step)
        opt.step(p, step.grad)
    return steps, p


def choose_data(c, rule, params, count, generator):
    """Draws the batches of one step after the other, until each has its margins."""
    p, opt, data, drawn = dict(params), AdamW(params), [], 0
    while len(data) < count:
        tokens, labels = draw(c, generator)
        drawn += 1
        assert drawn < 200 * count, "no batches have the margins: try another seed"
        step = Step(c, rule, p, tokens, labels)
        if acceptable(tokens, labels, step.margins()):
            data.append((tokens, labels))
            opt.step(p, step.grad)
    return data


def check_float32(c, rule, params, data, steps, final):
    """The same in float32: equal bits, and how far the parameters are off."""
    narrow, end = train(c, rule, {name: x.float() for name, x in params.items()}, data)
    for i, (a, b) in enumerate(zip(narrow, steps)):
        assert (a.bits() == b.bits()).all(), f"step {i}: float32 sets other bits"
    grads = worst(narrow[0].raw, steps[0].raw)
    loss = max(max(abs(a.loss / b.loss - 1), abs(a.meta_loss / b.meta_loss - 1)) for a, b in zip(narrow, steps))
    return dict(loss=loss, grad=grads, final=worst(end, final))


def norm_of(grads, member):
    return math.sqrt(sum(float((g * g).sum()) for name, g in grads.items() if member(name)))


def run(c, rule, params, data, name):
    """Trains with all checks. Returns the steps and the final parameters, and prints what was found."""
    autograd = []
    steps, final = train(c, rule, params, data,
                         lambda p, t, y, step: autograd.append(check_autograd(c, rule, p, t, y, step)))
    differences = check_differences(c, rule, params, *data[0], steps[0])
    check_adamw(params)
    float32 = check_float32(c, rule, params, data, steps, final)
    margins = {k: min(s.margins()[k] for s in steps) for k in steps[0].margins()}
    keep = torch.stack([s.keep for s in steps]).mean()
    print(f"{name}: smallest " + ", ".join(f"|{k}| {x:.1e}" for k, x in margins.items()))
    print(f"  kept {keep:.2f}, active {active_shares(c, steps[0], data[0][0])}, loss {steps[0].loss:.4f} to "
          f"{steps[-1].loss:.4f}, meta loss {steps[0].meta_loss:.4f} to {steps[-1].meta_loss:.4f}")
    print(f"  off by {max(autograd):.0e} (autograd), {differences:.0e} (finite differences); float32: "
          f"{float32['loss']:.0e} (losses), {float32['grad'][0]:.0e} (gradient: {float32['grad'][1]}), "
          f"{float32['final'][0]:.0e} (final: {float32['final'][1]})")
    assert (steps[0].raw["lm_head.weight"].abs() > HYPER["clamp"]).any(), "the clamp does nothing"
    assert 0.02 < keep < 0.98, "the gate does nothing"
    return steps, final


def active_shares(c, step, tokens):
    return [round(float(x), 4) for x in step.active.mean((1, 2)) / tokens.numel()]


def scalars_of(rule, steps):
    return dict(rule=rule, loss=[s.loss for s in steps], meta_loss=[s.meta_loss for s in steps],
                grad_norm_theta=[norm_of(s.grad, in_theta) for s in steps],
                grad_norm_phi=[norm_of(s.grad, in_phi) for s in steps],
                margins={k: min(s.margins()[k] for s in steps) for k in steps[0].margins()})


def variant_of(c, rule, init, data, name):
    steps, final = run(c, rule, init, data, name)
    return dict(scalars_of(rule, steps), final_sums={n: [float(x.sum()), float(x.abs().sum())]
                                                     for n, x in final.items() if not is_frozen(n)})


def compute(c, init, data, variants):
    """The two files of a case: the JSON's content without inputs, and the tensors without init."""
    steps, final = run(c, RULE, init, data, "global")
    counted = data[0][0].numel()
    values = scalars_of(RULE, steps)
    values.update(entropy=[(s.entropy / counted).tolist() for s in steps],
                  active_share=[(s.active.mean(-1) / counted).tolist() for s in steps],
                  keep_share=[s.keep.mean(-1).tolist() for s in steps])
    logits, _, _ = forward(c, init, chain(c, init)[0], data[0][0][0])
    tensors = dict(logits=logits)
    tensors.update({"raw/" + n: g for n, g in steps[0].raw.items() if in_theta(n)})
    tensors.update({"grad/" + n: g for n, g in steps[0].grad.items()})
    tensors.update({"final/" + n: x for n, x in final.items()})
    for field, key in (("s", "goodness"), ("keep", "keep"), ("active", "active")):
        tensors[key] = torch.stack([getattr(s, field) for s in steps])
    values["variants"] = {n: variant_of(c, VARIANTS[n], init, d, n) for n, d in variants.items()}
    return values, tensors


# --- files ----------------------------------------------------------------------------------------

def lists_of(data):
    return dict(tokens=[t.flatten(1).tolist() for t, _ in data], labels=[y.flatten(1).tolist() for _, y in data])


def data_of(values, root):
    shape = (-1, root["batch"], root["tokens_per_sequence"])
    return [(torch.tensor(t).view(shape), torch.tensor(y).view(shape))
            for t, y in zip(values["tokens"], values["labels"])]


def write_case(name, c, seed):
    print(f"--- {name}")
    generator = torch.Generator().manual_seed(seed)
    init = initial_params(c, generator)
    data = choose_data(c, RULE, init, STEPS, generator)
    variants = {n: choose_data(c, rule, init, VARIANT_STEPS, generator) for n, rule in VARIANTS.items()} \
        if name == "sars" else {}
    values, tensors = compute(c, init, data, variants)
    for n, d in variants.items():
        values["variants"][n].update(lists_of(d))
    root = dict(model=c, hyper=dict(HYPER, lr=[HYPER["lr"]] * STEPS), batch=BATCH, tokens_per_sequence=TOKENS,
                **lists_of(data), **values)
    write_json(os.path.join(GOLDEN, name + ".json"), root)
    arrays = {"init/" + n: x.float().numpy() for n, x in init.items()}
    arrays.update({n: np.ascontiguousarray(x.numpy()) for n, x in tensors.items()})
    write_safetensors(os.path.join(GOLDEN, name + ".safetensors"), arrays)


def read_safetensors(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = f.read()
    types = dict(F32=np.float32, F64=np.float64)
    return {n: torch.tensor(np.frombuffer(data[slice(*e["data_offsets"])], types[e["dtype"]]).reshape(e["shape"]))
            for n, e in header.items()}


def numbers_of(value, at=""):
    """Every leaf of a JSON value, by its path."""
    if isinstance(value, (dict, list)):
        for key, x in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers_of(x, f"{at}/{key}")
    else:
        yield at, value


def check_case(path):
    with open(path) as f:
        root = json.load(f)
    stored = read_safetensors(os.path.splitext(path)[0] + ".safetensors")
    init = {n[len("init/"):]: stored.pop(n).double() for n in list(stored) if n.startswith("init/")}
    assert [(n, tuple(x.shape)) for n, x in init.items()] == list(shapes(root["model"])), "names or shapes"
    assert {**HYPER, "lr": [HYPER["lr"]] * STEPS} == root["hyper"], "hyper-parameters"
    values, tensors = compute(root["model"], init, data_of(root, root),
                              {n: data_of(v, root) for n, v in root["variants"].items()})
    difference, name = worst(tensors, stored)
    found, wrong = dict(numbers_of(root)), []
    for at, x in numbers_of(values):
        y = found.get(at)
        same = abs(x - y) <= 1e-9 * max(1.0, abs(x)) if isinstance(x, float) and isinstance(y, float) else x == y
        if not same:
            wrong.append(f"{at}: {y}, recomputed {x}")
    print(f"{path}: tensors differ by {difference:.1e} ({name}), {len(wrong)} other values differ")
    for line in wrong[:10]:
        print("  " + line)
    return difference <= 1e-9 and not wrong


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--check":
        return 0 if check_case(sys.argv[2]) else 1
    if len(sys.argv) != 1:
        print(__doc__)
        return 2
    os.makedirs(GOLDEN, exist_ok=True)
    for seed, (name, c) in enumerate(CASES.items(), 11):
        write_case(name, c, seed)
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    sys.exit(main())
