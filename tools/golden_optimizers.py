#!/usr/bin/env python3
"""Golden values of the optimizers' rules: ten steps with given gradients.

    python3 tools/golden_optimizers.py       writes tests/ops/golden/optimizers.json

AdamW and SGD come from PyTorch in double precision. Muon is plain tensor code in this file, in double precision; where
PyTorch has a Muon, it must give the same parameters. AdamW with 8-bit moments is plain code as well: its arithmetic is
float32, one rounded operation after the other, and its code (src/ops/ops_code8.h) is implemented here a second time, with
exact fractions in place of bits, so that the test can compare codes and parameters exactly. Needs torch and numpy.
"""
import json
import math
import os
import sys
from fractions import Fraction
from unittest import mock

import numpy as np
import torch

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "ops", "golden", "optimizers.json")
STEPS, GRAD_SCALE = 10, 0.5
# Two tensors, one wide and one tall. The second has its own learning rate and no decay. What the 8-bit code depends on:
# the key, the index of the first element in its tensor, and how many elements of a block come before it.
SEGMENTS = [dict(rows=6, columns=20, lr_mul=1.0, decay=0.1, key=0x9b05688c, first=(5 << 32) + 128, skip=0),
            dict(rows=13, columns=5, lr_mul=0.25, decay=0.0, key=0x1f83d9ab, first=0, skip=56)]
BLOCK = 64


def draw_inputs():
    """Two sets of parameters and gradients: plain ones; and ones from zero to large, so that eps = 1e-8 matters."""
    generator = torch.Generator().manual_seed(7)
    short = np.vectorize(lambda x: np.float32(f"{x:.4g}"), otypes=[np.float32])  # few digits keep the file small
    inputs = {}
    for name in ("plain", "spread"):
        inputs[name] = []
        for s in SEGMENTS:
            count = s["rows"] * s["columns"]
            size = 10.0 ** torch.randint(-10, 2, (count,), generator=generator)
            grads = torch.randn(STEPS, count, generator=generator)
            if name == "spread":
                grads = grads * size
                grads[:, ::17] = 0.0
            inputs[name].append(dict(param=short(torch.randn(count, generator=generator)), grads=short(grads)))
    return inputs


# --- AdamW and SGD: PyTorch -----------------------------------------------------------------------

def run_torch(inputs, make, states):
    """The results of a PyTorch optimizer; `states` gives our names of its states."""
    params = [torch.tensor(given["param"], dtype=torch.float64).requires_grad_(True) for given in inputs]
    optimizer = make(params)
    for t in range(STEPS):
        for p, given in zip(params, inputs):
            p.grad = torch.tensor(given["grads"][t], dtype=torch.float64) * GRAD_SCALE
        optimizer.step()
    return [dict(param=reals(p.detach()), **{ours: reals(optimizer.state[p][theirs]) for ours, theirs in states.items()})
            for p in params]


def groups(params, lr, decay):
    return [dict(params=[p], lr=lr * s["lr_mul"], weight_decay=s["decay"] if decay else 0.0)
            for p, s in zip(params, SEGMENTS)]


def adamw(inputs, lr, beta1, beta2, eps):
    return run_torch(inputs, lambda params: torch.optim.AdamW(groups(params, lr, True), betas=(beta1, beta2), eps=eps,
                                                              foreach=False),
                     dict(m="exp_avg", v="exp_avg_sq"))


def sgd(inputs, lr, momentum, nesterov, decay):
    return run_torch(inputs, lambda params: torch.optim.SGD(groups(params, lr, decay), lr=lr, momentum=momentum,
                                                            nesterov=nesterov, foreach=False),
                     dict(m="momentum_buffer") if momentum > 0 else {})


# --- Muon -----------------------------------------------------------------------------------------

def orthogonalize(x):
    """Five Newton-Schulz iterations on the shorter side."""
    if x.shape[0] > x.shape[1]:
        return orthogonalize(x.T).T
    x = x / x.norm()
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


def muon(inputs, lr, momentum, nesterov):
    results = []
    for given, s in zip(inputs, SEGMENTS):
        shape = (s["rows"], s["columns"])
        p = torch.tensor(given["param"], dtype=torch.float64).reshape(shape)
        m = torch.zeros(shape, dtype=torch.float64)
        rate, scale = lr * s["lr_mul"], 0.2 * math.sqrt(max(shape))
        for t in range(STEPS):
            g = torch.tensor(given["grads"][t], dtype=torch.float64).reshape(shape) * GRAD_SCALE
            m = momentum * m + (1 - momentum) * g
            direction = orthogonalize(momentum * m + (1 - momentum) * g if nesterov else m)
            p = p - rate * (scale * direction + s["decay"] * p)
        results.append(dict(param=reals(p), m=reals(m), direction=reals(direction)))
    if hasattr(torch.optim, "Muon"):
        compare_with_torch(inputs, lr, momentum, nesterov, results)
    else:
        print("this PyTorch has no Muon: not compared")
    return results


def compare_with_torch(inputs, lr, momentum, nesterov, results):
    """PyTorch's Muon iterates in torch.bfloat16; here that names double."""
    shaped = [dict(param=given["param"].reshape(s["rows"], s["columns"]),
                   grads=given["grads"].reshape(STEPS, s["rows"], s["columns"])) for given, s in zip(inputs, SEGMENTS)]
    with mock.patch.object(torch, "bfloat16", torch.float64):
        theirs = run_torch(shaped, lambda params: torch.optim.Muon(groups(params, lr, True), lr=lr, momentum=momentum,
                                                                   nesterov=nesterov, adjust_lr_fn="match_rms_adamw"), {})
    for a, b in zip(theirs, results):
        np.testing.assert_allclose(np.array(a["param"]), np.array(b["param"]), rtol=0, atol=1e-9)


# --- AdamW with 8-bit moments ---------------------------------------------------------------------

def exponent_of(x):
    """The largest e with 2^e <= x, for a fraction above 0."""
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= x else e - 1


def scale_of(values):
    """The byte of a block's scale: the exponent of the largest value, rounded to five bits; 0 for zeros."""
    most = max(values)
    if most == 0:
        return 0
    unit = Fraction(2) ** (exponent_of(most) - 4)
    return min(max(exponent_of(round(most / unit) * unit) + 127, 1), 254)


def encode(x, scale, least, random=None):
    """The code of x >= 0: its position among the values 0, 2^(least - 4), ... of the code, relative to the scale. `least`:
    the exponent of the smallest normal value. Rounded to nearest even, or with 24 random bits."""
    if x == 0 or scale == 0:
        return 0
    relative = x / Fraction(2) ** (scale - 127)
    e = max(exponent_of(relative), least)
    steps = relative / Fraction(2) ** (e - 4)
    if random is None:
        rounded = round(steps)
    else:
        dropped = 19 + e - exponent_of(relative)  # bits of a float's 24 below the step
        if dropped > 30:
            return 0
        rounded = math.floor(steps + Fraction(math.floor(Fraction(random) * Fraction(2) ** (dropped - 24)), 2 ** dropped))
    return min((e - least) * 16 + rounded, (1 - least) * 16 + 15)


def decode(code, scale, least):
    if scale == 0:
        return Fraction(0)
    e = max(code // 16 - 1, 0)
    return (code - e * 16) * Fraction(2) ** (least - 4 + e) * Fraction(2) ** (scale - 127)


def random_bits(key, element, number):
    """24 bits from a hash of 32."""
    low, high = element & 0xffffffff, element >> 32
    x = (key + number * 0x9e3779b9 + low * 0x85ebca6b + high * 0xc2b2ae35) & 0xffffffff
    x = ((x ^ (x >> 16)) * 0x7feb352d) & 0xffffffff
    x = ((x ^ (x >> 15)) * 0x846ca68b) & 0xffffffff
    return (x ^ (x >> 16)) >> 8


LEAST_M, LEAST_V = -6, -14


class Moments:
    """The codes and scales of one segment."""

    def __init__(self, s):
        count = s["rows"] * s["columns"]
        self.s = s
        self.m, self.v = [0] * count, [0] * count
        edges = [0] + list(range(BLOCK - s["skip"], count, BLOCK)) + [count]
        self.blocks = list(zip(edges, edges[1:]))
        self.m_scale, self.v_scale = [0] * len(self.blocks), [0] * len(self.blocks)

    def read(self):
        m, root = np.zeros(len(self.m), np.float32), np.zeros(len(self.m), np.float32)
        for (first, end), m_scale, v_scale in zip(self.blocks, self.m_scale, self.v_scale):
            for i in range(first, end):
                m[i] = np.float32(float(decode(self.m[i] & 127, m_scale, LEAST_M)) * (-1 if self.m[i] & 128 else 1))
                root[i] = np.float32(float(decode(self.v[i], v_scale, LEAST_V)))
        return m, root * root

    def write(self, m, v, number):
        root = np.sqrt(v)
        exact_m, exact_v = [Fraction(abs(float(x))) for x in m], [Fraction(float(x)) for x in root]
        for b, (first, end) in enumerate(self.blocks):
            self.m_scale[b], self.v_scale[b] = scale_of(exact_m[first:end]), scale_of(exact_v[first:end])
            for i in range(first, end):
                random = random_bits(self.s["key"], self.s["first"] + i, number)
                code = encode(exact_m[i], self.m_scale[b], LEAST_M)
                self.m[i] = code | (128 if code and np.signbit(m[i]) else 0)  # a zero has no sign
                self.v[i] = encode(exact_v[i], self.v_scale[b], LEAST_V, random)
                if self.v[i] == 0 and exact_v[i] > 0:
                    self.v[i] = 1


def adamw8(inputs, lr, beta1, beta2, eps):
    f = np.float32
    results = []
    for given, s in zip(inputs, SEGMENTS):
        p, moments = given["param"].copy(), Moments(s)
        rate, decay = f(lr) * f(s["lr_mul"]), f(s["decay"])
        for t in range(1, STEPS + 1):
            g = given["grads"][t - 1] * f(GRAD_SCALE)
            m, v = moments.read()
            m = f(beta1) * m + f(1 - beta1) * g
            v = f(beta2) * v + f(1 - beta2) * (g * g)
            step = m / f(1 - beta1 ** t) / (np.sqrt(v / f(1 - beta2 ** t)) + f(eps))
            p = p - rate * (step + decay * p)
            moments.write(m, v, t)
        assert p.dtype == m.dtype == v.dtype == np.float32
        results.append(dict(param=singles(p), m=moments.m, v=moments.v, m_scale=moments.m_scale, v_scale=moments.v_scale))
    return results


# --- the file -------------------------------------------------------------------------------------

def reals(tensor):
    return [float(f"{x:.10g}") for x in tensor.flatten().tolist()]


def singles(array):
    """Few digits that give back the same float32."""
    texts = [float(np.format_float_scientific(x, unique=True)) for x in array.flatten()]
    assert all(np.float32(x) == y for x, y in zip(texts, array.flatten()))
    return texts


def case(inputs, rule, name, of, function, **hyper):
    return dict(name=name, rule=rule, inputs=of, hyper=hyper, segments=function(inputs[of], **hyper))


def main():
    inputs = draw_inputs()
    adam = dict(lr=3e-3, beta1=0.9, beta2=0.999, eps=1e-8)
    cases = [
        case(inputs, "adamw", "adamw", "spread", adamw, **adam),
        case(inputs, "adamw8", "adamw8", "spread", adamw8, **adam),
        case(inputs, "sgd", "sgd", "plain", sgd, lr=0.1, momentum=0.0, nesterov=False, decay=False),
        case(inputs, "sgd", "sgd with decay", "plain", sgd, lr=0.1, momentum=0.0, nesterov=False, decay=True),
        case(inputs, "sgd", "sgd with momentum", "plain", sgd, lr=0.03, momentum=0.9, nesterov=False, decay=True),
        case(inputs, "sgd", "sgd, Nesterov", "spread", sgd, lr=0.01, momentum=0.9, nesterov=True, decay=True),
        case(inputs, "muon", "muon", "plain", muon, lr=0.1, momentum=0.95, nesterov=False),
        case(inputs, "muon", "muon, Nesterov", "plain", muon, lr=0.1, momentum=0.95, nesterov=True),
    ]
    given = {name: [dict(param=singles(s["param"]), grads=[singles(g) for g in s["grads"]]) for s in segments]
             for name, segments in inputs.items()}
    with open(FILE, "w") as out:
        json.dump(dict(grad_scale=GRAD_SCALE, segments=SEGMENTS, inputs=given, cases=cases), out, separators=(",", ":"))
        out.write("\n")
    print(f"{FILE}: {os.path.getsize(FILE)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
