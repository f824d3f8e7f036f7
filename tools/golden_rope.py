#!/usr/bin/env python3
"""golden_rope.py OUT: write cos and sin of transformers for every kind of rotary positions.

    tools/golden_rope.py tests/train/golden/rope.json

Each case has the rope keys of a config.json, in the forms of transformers 4 and 5, and what the
model's rotary embedding returns at some positions: `usual` for short texts, `longer` for texts
longer than the original context (longrope), `local` for layers with a window (Gemma 3).
tests/train/test_hf_rope.c compares. Needs torch and transformers; the file is committed.
"""
import copy
import json
import sys

import torch
from transformers import Gemma3TextConfig, LlamaConfig, Phi3Config
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

SIZES = dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             num_hidden_layers=6, intermediate_size=96, vocab_size=128, max_position_embeddings=64,
             pad_token_id=0, bos_token_id=1, eos_token_id=2)
PARTIAL_PAIRS, ALL_PAIRS = 6, 8
AT = [1, 2, 7, 12, 19]  # positions that are written


def factors(first, step, count):
    return [round(first + step * i, 4) for i in range(count)]


def table(rotary, length, layer_type=None):
    """(cos, sin) of each pair at the positions AT, for a text of `length` tokens."""
    positions = torch.arange(length)[None]
    more = {} if layer_type is None else {"layer_type": layer_type}
    cos, sin = rotary(torch.zeros(1, length, 8), positions, **more)
    half = cos.shape[-1] // 2
    return [[[c.item(), s.item()] for c, s in zip(cos[0, t, :half], sin[0, t, :half])]
            for t in AT if t < length]


def case(name, model_type, keys, short=20, long=None, local=False):
    classes = {"llama": (LlamaConfig, LlamaRotaryEmbedding), "phi3": (Phi3Config, Phi3RotaryEmbedding),
               "gemma3_text": (Gemma3TextConfig, Gemma3RotaryEmbedding)}
    make, embed = classes[model_type]
    config = make.from_dict(copy.deepcopy({**SIZES, **keys}))  # it changes what it is given
    rotary = embed(config)
    full = "full_attention" if model_type == "gemma3_text" else None
    out = {"usual": table(rotary, short, full)}
    if long:
        out["longer"] = table(rotary, long)
    if local:
        out["local"] = table(rotary, short, "sliding_attention")
    written = config.to_dict()
    again = {k: written[k] for k in ("rope_parameters", "rope_theta", "partial_rotary_factor",
                                     "original_max_position_embeddings") if written.get(k) is not None}
    sizes = {k: SIZES[k] for k in ("head_dim", "max_position_embeddings")}
    return [{"name": name, "config": {**sizes, **keys}, "tables": out},
            {"name": name + ", written by transformers", "config": {**sizes, **again}, "tables": out}]


def scaled(kind, **more):
    return {"rope_theta": 10000.0, "rope_scaling": {"rope_type": kind, **more}}


def cases():
    yarn = dict(factor=4.0, original_max_position_embeddings=16)
    yield from case("plain", "llama", {"rope_theta": 5000.0})
    yield from case("linear", "llama", scaled("linear", factor=4.0))
    yield from case("llama3", "llama", scaled("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                              original_max_position_embeddings=32))
    yield from case("dynamic", "llama", scaled("dynamic", factor=4.0))
    yield from case("yarn", "llama", scaled("yarn", **yarn))
    yield from case("yarn, a higher base", "llama",
                    {"rope_theta": 1000000.0, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                                                               "original_max_position_embeddings": 4096}})
    yield from case("yarn with ranges", "llama", scaled("yarn", beta_fast=8.0, beta_slow=0.5, **yarn))
    yield from case("yarn with a factor", "llama", scaled("yarn", attention_factor=0.75, **yarn))
    yield from case("yarn with mscale", "llama", scaled("yarn", mscale=1.0, mscale_all_dim=0.5, **yarn))
    yield from case("yarn, not rounded", "llama", scaled("yarn", truncate=False, beta_fast=4.0, **yarn))
    long = dict(short_factor=factors(1, 0.05, ALL_PAIRS), long_factor=factors(1.5, 0.75, ALL_PAIRS))
    yield from case("longrope", "phi3", {"rope_theta": 10000.0, "original_max_position_embeddings": 16,
                                         "rope_scaling": {"type": "longrope", **long}}, short=14, long=20)
    yield from case("longrope with a factor", "phi3",
                    {"rope_theta": 10000.0, "original_max_position_embeddings": 16,
                     "rope_scaling": {"type": "longrope", "attention_factor": 1.25, **long}}, short=14, long=20)
    yield from case("partial", "phi3", {"rope_theta": 10000.0, "partial_rotary_factor": 0.75})
    part = dict(short_factor=factors(1, 0.1, PARTIAL_PAIRS), long_factor=factors(2, 1, PARTIAL_PAIRS))
    yield from case("longrope, partial", "phi3",
                    {"rope_theta": 10000.0, "original_max_position_embeddings": 16,
                     "partial_rotary_factor": 0.75, "rope_scaling": {"type": "longrope", **part}},
                    short=14, long=20)
    gemma = {"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "sliding_window": 8}
    yield from case("two bases", "gemma3_text", gemma, local=True)
    yield from case("two bases, linear", "gemma3_text",
                    {**gemma, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, local=True)


def main():
    found = {"positions": AT, "cases": list(cases())}
    with open(sys.argv[1], "w") as out:
        json.dump(found, out, separators=(",", ":"))
        out.write("\n")
    print(len(found["cases"]), "cases")


if __name__ == "__main__":
    main()
