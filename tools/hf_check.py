#!/usr/bin/env python3
"""Exchanges models between sifr and transformers, in both directions.

    python3 tools/hf_check.py BUILD [FAMILY...]     only the checks of these families, such as qwen3 or "phi3 partial"

transformers loads what sifr exports, with no missing or unexpected tensor, and has the same loss and the same greedy
text; sifr loads what transformers saves, with the same checks. Cases: GPT-2 and Llama with grouped heads, tied and
untied heads, one or several files, F32, BF16 and F16, config keys of transformers 4 and 5, tensor names with and
without their prefix, three kinds of rope. Special tokens: sifr adds and stops at the tokens that transformers does, and
fine-tuning and exporting keep chat template, generation config and the tokenizer's files. Frozen parameters: transformers
sees them unchanged, and the others as after a step that freezes nothing. Families: every kind of model in its variants,
also the gradient of one step, 20 steps of training, and the bits of tp 2 alone under tp 2 x pp 2 x stage 3. Prints a line for
each case. Exit code 1: a case failed; 0 with a message: a package is missing.
"""
import glob
import json
import os
import subprocess
import sys
import tempfile

os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", SIFR_RUN_THREADS="2")
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
VOCAB, CONTEXT, SEQUENCES, NEW_TOKENS = 400, 64, 12, 40
LIMIT = 1e-5  # of a loss
GRADIENT_LIMIT = 1e-4  # of a tensor's gradient, as a part of the norm of all
PROMPT = "static enum status "


class Bench:
    """The command, a working folder, and the tokens on which the loss is measured."""

    def __init__(self, build, folder):
        self.sifr_path, self.folder, self.failed, self.count, self.worst = os.path.join(build, "sifr"), folder, 0, 0, 0.0
        self.text = self.path("text.txt")
        with open(self.text, "w", encoding="utf-8") as out:
            for path in sorted(glob.glob(f"{ROOT}/src/base/*.c")):
                out.write(open(path, encoding="utf-8").read())
        self.sifr("tokenize", self.text, f"--vocab={VOCAB}", f"--out={self.path('tokens')}")
        from transformers import PreTrainedTokenizerFast
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_file=self.path("tokens/tokenizer.json"))
        ids = self.tokenizer(open(self.text, encoding="utf-8").read()[-8000:])["input_ids"][: CONTEXT * SEQUENCES + 1]
        self.ids, self.val = ids, self.path("val.bin")
        with open(self.val, "wb") as out:
            out.write(b"".join(i.to_bytes(2, "little") for i in ids))

    def path(self, name):
        return os.path.join(self.folder, name)

    def sifr(self, *words):
        done = subprocess.run([self.sifr_path, *words], capture_output=True)
        if done.returncode != 0:
            raise RuntimeError(f"sifr {' '.join(words)}: exit {done.returncode}: {done.stderr.decode()}")
        return done.stdout.decode(errors="replace")  # generated text may be invalid UTF-8

    def sifr_loss(self, model):
        got = json.loads(self.sifr("eval", model, f"--data.val={self.val}", "--data.format=u16", f"--context={CONTEXT}", "--json"))
        assert got["tokens"] == CONTEXT * SEQUENCES, got
        return got["loss"]

    def sifr_text(self, model):
        return self.sifr("sample", model, f"--prompt={PROMPT}", "--temperature=0", f"--tokens={NEW_TOKENS}", "--raw", "--quiet",
                         "--ignore-eot")

    def peer_loss(self, model):
        import torch
        ids = torch.tensor(self.ids)
        x, y = ids[:-1].view(SEQUENCES, CONTEXT), ids[1:].view(SEQUENCES, CONTEXT)
        with torch.no_grad():
            logits = model(input_ids=x).logits
        return torch.nn.functional.cross_entropy(logits.double().flatten(0, 1), y.flatten()).item()

    def peer_ids(self, model):
        import torch
        x = torch.tensor([self.tokenizer(PROMPT)["input_ids"]])
        model.generation_config.eos_token_id = None
        y = model.generate(input_ids=x, attention_mask=torch.ones_like(x), do_sample=False, max_new_tokens=NEW_TOKENS,
                           pad_token_id=0)
        return y[0, x.shape[1]:]

    def peer_text(self, model):
        return self.tokenizer.decode(self.peer_ids(model), clean_up_tokenization_spaces=False)

    def check(self, what, ok, words):
        self.count += 1
        self.failed += not ok
        print(f"{'ok    ' if ok else 'FAILED'}  {what}: {words}", flush=True)

    def report(self):
        import torch
        import transformers
        print(f"{self.count} checks with transformers {transformers.__version__} and torch {torch.__version__}: {self.failed} failed; "
              f"losses at most {self.worst:.1e} apart")
        return 1 if self.failed else 0

    def compare(self, what, sifr_model, peer):
        """Compare loss and greedy text of a model in sifr and in transformers."""
        try:
            ours, theirs = self.sifr_loss(sifr_model), self.peer_loss(peer)
            ours_text, theirs_text = self.sifr_text(sifr_model), self.peer_text(peer)
        except (RuntimeError, AssertionError) as error:
            self.check(what, False, error)
            return
        away, same = abs(ours - theirs), ours_text == theirs_text
        self.worst = max(self.worst, away)
        self.check(what, away <= LIMIT and same, f"loss {ours:.7f} and {theirs:.7f}, {away:.1e} apart; greedy text "
                   + ("equal" if same else f"{ours_text!r} and {theirs_text!r}"))


def load(folder, dtype="float32"):
    """Load with transformers; any missing or unexpected tensor is an error."""
    import torch
    from transformers import AutoModelForCausalLM
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype) if dtype != "auto" else dtype,
                                                       output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info.get(key):
            raise RuntimeError(f"{folder}: {key} {info[key]}")
    return model.eval()


# --- sifr exports ---------------------------------------------------------------------------------

TRAINED = {
    "gpt2 tied": ["--model.arch=gpt2", "--model.tied=yes"],
    "gpt2 untied": ["--model.arch=gpt2", "--model.tied=no"],
    "llama tied": ["--model.arch=llama", "--model.kv_heads=2", "--model.tied=yes"],
    "llama untied": ["--model.arch=llama", "--model.kv_heads=1", "--model.tied=no"],
    "llama bf16 run": ["--model.arch=llama", "--model.kv_heads=2", "--model.tied=no", "--precision.mode=bf16"],
}


def check_types(bench, name, run, wide):
    """16-bit exports: transformers detects the type, and the values are the rounded fp32 ones."""
    import torch
    for word, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)):
        out = f"{wide}-{word}"
        bench.sifr("export", run, out, f"--dtype={word}")
        narrow, reference = load(out, "auto"), load(wide)
        theirs = dict(reference.named_parameters())
        same = all(p.dtype == dtype and torch.equal(p, theirs[n].to(dtype)) for n, p in narrow.named_parameters())
        bench.check(f"export {name} to {word}", same, "values are the fp32 ones, rounded" if same else "other values or types")
        bench.compare(f"export {name} to {word}, both in fp32", out, load(out))


def check_exports(bench):
    for name, words in TRAINED.items():
        run, wide = bench.path(name.replace(" ", "-")), bench.path(name.replace(" ", "-") + "-hf")
        bench.sifr("train", *words, "--model.layers=3", "--model.width=48", "--model.heads=4", f"--model.context={CONTEXT}",
                   f"--data.path={bench.path('tokens/train.bin')}", f"--data.tokenizer={bench.path('tokens/tokenizer.json')}",
                   "--train.steps=60", "--train.micro_batch=8", "--train.lr=3e-3", f"--out={run}")
        bench.sifr("export", run, wide, "--dtype=f32")
        bench.compare(f"export {name}", wide, load(wide))
        parts = wide + "-parts"
        bench.sifr("export", run, parts, "--dtype=f32", "--shard-size=100k")
        files = len(glob.glob(parts + "/model-*.safetensors"))
        bench.compare(f"export {name} in {files} files", parts, load(parts))
        check_types(bench, name, run, wide)
        from transformers import AutoTokenizer
        ids = AutoTokenizer.from_pretrained(wide)(PROMPT)["input_ids"]
        bench.check(f"export {name}, tokenizer", ids == bench.tokenizer(PROMPT)["input_ids"], f"{len(ids)} ids")


# --- transformers saves ---------------------------------------------------------------------------

def rope_keys(rope):
    """Config keys of the installed transformers: one object since version 5, before that base and scaling."""
    import transformers
    if int(transformers.__version__.split(".")[0]) >= 5:
        return {"rope_parameters": rope}
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    return {"rope_theta": rope["rope_theta"], "rope_scaling": None if rope["rope_type"] == "default" else scaling}


def made(name, vocab=VOCAB, **tokens):
    """A transformers model with weights large enough for the most likely token to be unambiguous."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
    torch.manual_seed(1)
    tied = "untied" not in name
    if name.startswith("gpt2"):
        model = GPT2LMHeadModel(GPT2Config(
            vocab_size=vocab, n_positions=CONTEXT * 2, n_embd=36, n_layer=2, n_head=3, tie_word_embeddings=tied, bos_token_id=0,
            eos_token_id=0, n_inner=100 if "inner" in name else None,
            activation_function="gelu" if "exact" in name else "gelu_new"))
    else:
        rope = {"rope_type": "default", "rope_theta": 500000.0}
        if "linear" in name:
            rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
        if "llama3" in name:
            rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 32, "rope_theta": 10000.0}
        model = LlamaForCausalLM(LlamaConfig(
            vocab_size=vocab, hidden_size=48, intermediate_size=70, num_hidden_layers=2, num_attention_heads=6,
            num_key_value_heads=2, head_dim=16 if "wide heads" in name else 8, max_position_embeddings=CONTEXT * 2,
            tie_word_embeddings=tied, **(tokens or {"bos_token_id": 0, "eos_token_id": [0, 1]}), **rope_keys(rope)))
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.ndim > 1:
                p.normal_(0, 0.15)
            else:
                p.add_(0.1 * torch.randn_like(p))
    return model.eval()


def as_transformers_4(folder):
    """Rewrite config.json as transformers 4.x writes it."""
    path = os.path.join(folder, "config.json")
    config = json.load(open(path, encoding="utf-8"))
    config["torch_dtype"] = config.pop("dtype", "float32")
    config["transformers_version"] = "4.40.0"
    rope = config.pop("rope_parameters", None)
    if rope:
        config["rope_theta"] = rope.pop("rope_theta")
        kind = rope.pop("rope_type")
        config["rope_scaling"] = None if kind == "default" else {"type" if kind == "linear" else "rope_type": kind, **rope}
    json.dump(config, open(path, "w", encoding="utf-8"), indent=2)


def strip_prefix(folder):
    """Rename tensors as in a model that was saved without its head."""
    from safetensors.torch import load_file, save_file
    path = os.path.join(folder, "model.safetensors")
    tensors = {k.removeprefix("transformer.").removeprefix("model."): v for k, v in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})


def check_saved(bench):
    import torch
    names = ["gpt2 tied", "gpt2 untied", "gpt2 tied inner", "gpt2 tied exact", "llama tied", "llama untied", "llama untied linear",
             "llama untied llama3", "llama untied wide heads"]
    for name in names:
        model = made(name)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            rounded = made(name).to(dtype)
            folder = bench.path(f"saved {name} {dtype}")
            rounded.save_pretrained(folder)
            bench.tokenizer.save_pretrained(folder)
            # load it again instead of rounded.to(float32), in which the rope frequencies are
            # rounded, too
            bench.compare(f"load {name} {str(dtype)[6:]}", folder, load(folder))
            back = folder + " back"
            bench.sifr("export", folder, back)
            bench.sifr("inspect", "--diff", folder, back)
            bench.compare(f"load {name} {str(dtype)[6:]} and export", folder, load(back))
        for what, change in (("4.x keys", as_transformers_4), ("no prefix", strip_prefix)):
            folder = bench.path(f"saved {name} {what}")
            model.save_pretrained(folder)
            bench.tokenizer.save_pretrained(folder)
            change(folder)
            bench.compare(f"load {name}, {what}", folder, model)
        folder = bench.path(f"saved {name} parts")
        model.save_pretrained(folder, max_shard_size="60KB")
        bench.tokenizer.save_pretrained(folder)
        files = len(glob.glob(glob.escape(folder) + "/model-*.safetensors"))
        bench.compare(f"load {name} in {files} files", folder, model)
        if "untied" not in name:
            folder = bench.path(f"saved {name} body")
            model.base_model.save_pretrained(folder)
            bench.tokenizer.save_pretrained(folder)
            bench.compare(f"load {name}, body only", folder, model)


# --- families ----------------------------------------------------------------------------------------

ROPES = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "longrope": {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.6], "long_factor": [1.0, 1.5, 2.5, 4.0], "factor": 4.0},
}


def family_keys(name):
    """The class and the config keys of a tiny model; the words after the family's name choose a variant."""
    words = name.split()
    if words[0] == "gpt2":
        return "GPT2", dict(vocab_size=VOCAB, n_positions=CONTEXT * 2, n_embd=48, n_layer=4, n_head=6, bos_token_id=0, eos_token_id=0,
                            tie_word_embeddings="tied" in words, activation_function="gelu" if "exact" in words else "gelu_new")
    keys = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=70, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=2,
                head_dim=8, max_position_embeddings=CONTEXT * 2, tie_word_embeddings="tied" in words, bos_token_id=0, eos_token_id=[0, 1],
                pad_token_id=None, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    if "wide" in words:
        keys["head_dim"] = 20
    if "single" in words:
        keys["num_key_value_heads"] = 1
    if "biases" in words:
        keys["attention_bias"] = True
    if words[0] in ("llama", "smollm3") and "biases" in words:
        keys["mlp_bias"] = True
    if words[0] == "mistral":
        keys["sliding_window"] = None
    if "window" in words:
        keys["sliding_window"] = 20
        if words[0] in ("qwen2", "qwen3"):
            keys.update(use_sliding_window=True, max_window_layers=2)
    if words[0] == "smollm3" and "rope" in words:
        keys["no_rope_layers"] = [1, 1, 1, 1]
    for word in set(words) & set(ROPES):
        keys["rope_parameters"] = {**ROPES[word], "rope_theta": 10000.0}
    if "longrope" in words:  # the text is longer, or shorter, than the original context
        keys["original_max_position_embeddings"] = keys["rope_parameters"]["original_max_position_embeddings"] = 32 if "long" in words else 100
    if "partial" in words:
        keys["rope_parameters"]["partial_rotary_factor"] = 0.5
    names = dict(llama="Llama", qwen2="Qwen2", qwen3="Qwen3", mistral="Mistral", smollm3="SmolLM3", phi3="Phi3", olmo2="Olmo2", gemma2="Gemma2",
                 gemma3="Gemma3")
    if words[0].startswith("gemma"):
        keys.update(query_pre_attn_scalar=20, sliding_window=20, hidden_activation="gelu_pytorch_tanh")
    if words[0] == "gemma3":
        keys["rope_parameters"] = {"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100000.0},
                                   "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}}
        keys["layer_types"] = ["sliding_attention", "full_attention"] * 2
    if words[0] == "gemma2":
        keys.update(attn_logit_softcapping=None if "plain" in words else 3.0, final_logit_softcapping=None if "plain" in words else 4.0)
    if words[0] in ("olmo2", "phi3"):
        del keys["head_dim"]
    return names[words[0]], keys


def made_family(name):
    import torch
    import transformers
    torch.manual_seed(2)
    kind, keys = family_keys(name)
    config = getattr(transformers, kind + ("TextConfig" if kind == "Gemma3" else "Config"))(**keys)
    model = getattr(transformers, kind + ("LMHeadModel" if kind == "GPT2" else "ForCausalLM"))(config)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.ndim > 1:
                p.normal_(0, 0.15)
            else:
                p.add_(0.1 * torch.randn_like(p))
    return model.eval()


def check_step(bench, what, source):
    """A step of SGD over the only sequence of a file: the gradient is the difference divided by the learning rate."""
    import torch
    run, data, rate = source + " step", source + " step.bin", 1.0
    with open(data, "wb") as out:
        out.write(b"".join(i.to_bytes(2, "little") for i in bench.ids[:CONTEXT + 1]))
    bench.sifr("train", f"--model.path={source}", f"--data.path={data}", "--data.format=u16", "--data.split=0", f"--train.context={CONTEXT}",
               "--train.steps=1", "--train.micro_batch=1", "--train.warmup=0", f"--train.lr={rate}", "--train.clip=0",
               "--train.eval_every=0", "--optimizer.kind=sgd", "--train.weight_decay=0", "--optimizer.momentum=0", "--quiet",
               f"--out={run}")
    bench.sifr("export", run, run + " out", "--dtype=f32")
    before, after = load(source), dict(load(run + " out").named_parameters())
    ids = torch.tensor(bench.ids[:CONTEXT + 1])
    x, y = ids[None, :-1], ids[1:]
    torch.nn.functional.cross_entropy(before(input_ids=x).logits[0], y).backward()
    total = sum(p.grad.pow(2).sum() for p in before.parameters()).sqrt()
    away = {key: ((p.detach() - after[key].detach()) / rate - p.grad).norm() / total for key, p in before.named_parameters()}
    worst = max(away, key=away.get)
    bench.check(f"{what}, gradient", away[worst] <= GRADIENT_LIMIT, f"{away[worst]:.1e} of the norm at most, in {worst}")


def check_training(bench, what, source):
    """20 steps, export, load in transformers: the same loss and text, and a lower loss than before."""
    run, out = source + " trained", source + " trained out"
    bench.sifr("train", f"--model.path={source}", f"--data.path={bench.path('tokens/train.bin')}", f"--train.context={CONTEXT}",
               "--train.steps=20", "--train.micro_batch=4", "--train.lr=3e-3", "--train.eval_every=0", "--quiet", f"--out={run}")
    bench.sifr("export", run, out)
    before, after = (json.load(open(os.path.join(folder, "config.json"), encoding="utf-8")) for folder in (source, out))
    bench.check(f"{what}, class", before["architectures"] == after["architectures"] and before["model_type"] == after["model_type"],
                after["architectures"])
    bench.check(f"{what}, 20 steps", bench.sifr_loss(out) < bench.sifr_loss(source), f"loss {bench.sifr_loss(out):.4f}")
    bench.compare(f"{what}, 20 steps and export", out, load(out))


def check_layout(bench, what, source):
    """The bits of tp 2 alone and of tp 2 with a pipeline and ZeRO-3."""
    files = []
    for ranks, words in ((2, []), (4, ["--parallel.pp=2", "--zero.stage=3"])):
        run = f"{source} tp{ranks}"
        bench.sifr("train", "-n", str(ranks), f"--model.path={source}", f"--data.path={bench.path('tokens/train.bin')}",
                   f"--train.context={CONTEXT}", "--train.steps=3", "--train.micro_batch=2", "--train.global_batch=4", "--train.lr=3e-3",
                   "--train.eval_every=0", "--parallel.tp=2", "--run.threads=1", "--quiet", f"--out={run}", *words)
        bench.sifr("export", run, run + " out")
        files.append(open(os.path.join(run + " out", "model.safetensors"), "rb").read())
    bench.check(f"{what}, tp 2 x pp 2 x stage 3", files[0] == files[1], "the bits of tp 2" if files[0] == files[1] else "other bits")


FAMILIES = [
    "gpt2 tied", "gpt2 exact", "llama", "llama tied linear", "llama llama3", "llama yarn", "llama tied dynamic", "llama biases",
    "llama biases single tied", "qwen2", "qwen2 tied", "qwen2 yarn", "qwen2 window", "qwen3", "qwen3 biases wide tied", "qwen3 window",
    "mistral", "mistral wide tied", "mistral window", "smollm3", "smollm3 biases tied", "smollm3 rope", "phi3", "phi3 window tied",
    "phi3 partial", "phi3 longrope", "phi3 longrope long", "olmo2", "olmo2 biases tied", "gemma2 tied", "gemma2 biases",
    "gemma2 plain tied", "gemma3 tied", "gemma3 biases single",
]


def check_families(bench, chosen):
    import torch
    for name in FAMILIES:
        if chosen and name.split()[0] not in chosen and name not in chosen:
            continue
        try:
            for dtype in (torch.float32, torch.bfloat16):
                folder = bench.path(f"family {name} {dtype}")
                made_family(name).to(dtype).save_pretrained(folder)
                bench.tokenizer.save_pretrained(folder)
                what = f"{name} {str(dtype)[6:]}"
                bench.compare(f"load {what}", folder, load(folder))
                bench.sifr("export", folder, folder + " back")
                bench.sifr("inspect", "--diff", folder, folder + " back")
                bench.compare(f"load {what} and export", folder, load(folder + " back"))
                if dtype == torch.float32:
                    check_step(bench, name, folder)
                    check_training(bench, name, folder)
                    check_layout(bench, name, folder)
        except (RuntimeError, AssertionError, KeyError) as error:
            bench.check(name, False, error)


# --- special tokens and metadata -------------------------------------------------------------------

KEPT = ("generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
        "tokenizer.json")
CHAT = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
TEXTS = ["static int x;", "", " two\n\nlines ", "<|im_start|>user\nhi<|im_end|>", "naïve 漢字 🙂 \u0301"]


def as_older_files(folder):
    """The files as older versions of transformers wrote them: a map of special tokens, and the chat template inside
    tokenizer_config.json."""
    path, template = (os.path.join(folder, name) for name in ("tokenizer_config.json", "chat_template.jinja"))
    config = json.load(open(path, encoding="utf-8"))
    config["chat_template"] = open(template, encoding="utf-8").read()
    os.remove(template)
    json.dump(config, open(path, "w", encoding="utf-8"), indent=1)
    with open(os.path.join(folder, "special_tokens_map.json"), "w", encoding="utf-8") as out:
        json.dump({key: config[key] for key in ("bos_token", "eos_token", "pad_token")}, out, indent=3)


def pieces_tokenizer(bench):
    """A tokenizer over characters that falls back to bytes, as those that were made by sentencepiece."""
    from tokenizers import Tokenizer, decoders, models, normalizers, trainers
    spaces = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained = Tokenizer(models.BPE())
    trained.normalizer = spaces
    trained.train([bench.text], trainers.BpeTrainer(vocab_size=VOCAB - 259, show_progress=False))
    parts = json.loads(trained.to_str())["model"]
    words = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)] + sorted(parts["vocab"], key=parts["vocab"].get)
    core = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [tuple(pair) for pair in parts["merges"]], unk_token="<unk>",
                                fuse_unk=True, byte_fallback=True))
    core.normalizer = spaces
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return core


def text_of_pieces(tokenizer, ids):
    """The bytes of each token, as sifr prints them; `tokenizers` makes other characters of bytes that are not UTF-8."""
    words = tokenizer.convert_ids_to_tokens(ids)
    bits = [bytes([int(word[3:5], 16)]) if word.startswith("<0x") else word.replace("▁", " ").encode() for word in words]
    return b"".join(bits).decode(errors="replace")


def special_tokenizer(bench, bos):
    """A tokenizer with special tokens. `bos`: how <s> gets before a text: by a template, not at all; "pieces": by a template, and
    the tokenizer is not the byte-level one of `bench`."""
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast
    core = pieces_tokenizer(bench) if bos == "pieces" else Tokenizer.from_file(bench.path("tokens/tokenizer.json"))
    core.add_special_tokens(["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<pad>"])
    if bos == "template":
        core.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", core.token_to_id("<s>"))])])
    if bos == "pieces":
        core.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                                            special_tokens=[("<s>", core.token_to_id("<s>"))])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    tokenizer.chat_template = CHAT
    return tokenizer


def check_special(bench, bos):
    from transformers import AutoTokenizer, GenerationConfig
    tokenizer = special_tokenizer(bench, bos)
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in ("<s>", "</s>", "<|im_end|>", "<pad>")}
    model = made("llama untied", VOCAB + 8, bos_token_id=ids["<s>"], eos_token_id=[ids["</s>"], ids["<|im_end|>"]],
                 pad_token_id=ids["<pad>"])
    model.generation_config = GenerationConfig(eos_token_id=[ids["</s>"], ids["<|im_end|>"]], temperature=0.6, do_sample=True)
    source, run, out = (bench.path(f"special {bos} {name}") for name in ("source", "run", "out"))
    model.save_pretrained(source)
    tokenizer.save_pretrained(source)
    if bos == "none":
        as_older_files(source)
    reloaded = AutoTokenizer.from_pretrained(source)

    bench.sifr("train", f"--model.path={source}", f"--data.path={bench.text}", "--train.steps=2", "--train.micro_batch=2",
               "--train.eval_every=0", "--quiet", f"--out={run}")
    bench.sifr("export", run, out)
    files = [name for name in KEPT if os.path.exists(os.path.join(source, name))]
    changed = [name for name in files if open(os.path.join(source, name), "rb").read() != open(os.path.join(out, name), "rb").read()]
    bench.check(f"special tokens ({bos}), files", not changed and len(files) >= 3, f"{len(files)} files, changed: {changed}")
    before, after = (json.load(open(os.path.join(folder, "config.json"), encoding="utf-8")) for folder in (source, out))
    keys = ("bos_token_id", "eos_token_id", "pad_token_id")
    bench.check(f"special tokens ({bos}), config.json", all(before[key] == after[key] for key in keys), [after[key] for key in keys])
    again = AutoTokenizer.from_pretrained(out)
    same = all(again(text)["input_ids"] == reloaded(text)["input_ids"] for text in TEXTS)
    chat = [{"role": "user", "content": "hi"}]
    same = same and again.apply_chat_template(chat, tokenize=False) == reloaded.apply_chat_template(chat, tokenize=False)
    bench.check(f"special tokens ({bos}), AutoTokenizer", same, "the same ids and chat text" if same else "other ids or chat text")

    documents, shards = bench.path(f"special {bos}.jsonl"), bench.path(f"special {bos} shards")
    with open(documents, "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in TEXTS)
    bench.sifr("tokenize", documents, f"--tokenizer={source}", "--split=0", "--special", f"--out={shards}")
    raw = open(os.path.join(shards, "train.bin"), "rb").read()[1024:]
    ours = [int.from_bytes(raw[i:i + 2], "little") for i in range(0, len(raw), 2)]
    theirs = [i for text in TEXTS if text for i in reloaded(text)["input_ids"] + [ids["</s>"]]]
    bench.check(f"special tokens ({bos}), documents", ours == ([] if bos != "none" else [ids["</s>"]]) + theirs,
                f"{len(ours)} ids")
    text = bench.sifr_text(source)
    bench.tokenizer, plain = reloaded, bench.tokenizer
    theirs = text_of_pieces(reloaded, bench.peer_ids(model)) if bos == "pieces" else bench.peer_text(model)
    bench.tokenizer = plain
    bench.check(f"special tokens ({bos}), greedy text", text == theirs, "equal" if text == theirs else f"{text!r} and {theirs!r}")


# --- frozen parameters -----------------------------------------------------------------------------

def check_freeze(bench):
    """A step of SGD with frozen tensors: they are those of the source, the others those of a step that freezes nothing."""
    import fnmatch
    import torch
    for name, globs in (("gpt2 untied", "*.ln_*,*.h.0.mlp*"), ("gpt2 tied", "*.bias"), ("llama untied", "*embed_tokens*,*.layers.0.*"),
                        ("llama untied", "*proj*")):
        source, run, out = (bench.path(f"freeze {name} {globs} {word}".replace("*", "+")) for word in ("source", "run", "out"))
        made(name).save_pretrained(source)
        bench.tokenizer.save_pretrained(source)
        for word, freeze in (("", globs), (" all", "")):
            bench.sifr("train", f"--model.path={source}", f"--data.path={bench.text}", f"--train.context={CONTEXT}", "--train.steps=1",
                       "--train.micro_batch=4", "--train.warmup=0", "--train.lr=0.1", "--train.clip=0", "--train.eval_every=0",
                       "--optimizer.kind=sgd", "--quiet", f"--train.freeze={freeze}", f"--out={run}{word}")
            bench.sifr("export", run + word, out + word)
        before, after, every = (dict(load(folder).named_parameters()) for folder in (source, out, out + " all"))
        frozen = {key for key in before if any(fnmatch.fnmatchcase(key, glob) for glob in globs.split(","))}
        wrong = [key for key, p in after.items() if not torch.equal(p, before[key] if key in frozen else every[key])]
        moved = sum(not torch.equal(p, before[key]) for key, p in after.items())
        bench.check(f"freeze {name} {globs}", not wrong and frozen and moved == len(before) - len(frozen),
                    f"{len(frozen)} of {len(before)} tensors frozen, wrong: {wrong}")


def main():
    if len(sys.argv) < 2:
        print(__doc__.strip().splitlines()[2].strip(), file=sys.stderr)
        return 2
    try:
        import safetensors
        import torch
        import transformers
    except ImportError as error:
        print(f"skipped: {error}")
        return 0
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(os.path.abspath(sys.argv[1]), folder)
        check_families(bench, sys.argv[2:])
        if len(sys.argv) > 2:
            return bench.report()
        check_exports(bench)
        check_saved(bench)
        for bos in ("template", "none", "pieces"):
            check_special(bench, bos)
        check_freeze(bench)
        return bench.report()


if __name__ == "__main__":
    sys.exit(main())
