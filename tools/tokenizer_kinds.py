#!/usr/bin/env python3
"""Compares every kind of tokenizer with the `tokenizers` package, or writes the golden file of the comparison.

    python3 tools/tokenizer_kinds.py BUILD [KIND ...]     compare ids and decoded text; print a line per kind
    python3 tools/tokenizer_kinds.py --golden [FILE]      write tests/train/golden/tokenizer/kinds.json

A kind is one way to fill in tokenizer.json: those of well-known models, and one for each step and setting that is
supported. Each encodes the texts of tokenizer_vectors.py and some that concern normal forms and new characters, with
special tokens recognized and not; then every assigned code point in three contexts. The golden file has the
tokenizers, the texts, and hashes: of the ids of each text, of all texts as
ordinary ones, of all code points (tests/train/test_tokenizer_kinds.c).
Exit code 1: a difference; 77: the package is missing.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"
try:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
    import tokenizer_vectors as base
except ImportError:
    print("SKIPPED: the Python package tokenizers is not installed")
    sys.exit(77)

GOLDEN = "tests/train/golden/tokenizer/kinds.json"
MORE = [
    "🩷🫨🫩 new", "a🩷b", "\U0001fae9\U00010d50\U00010d70", "\U0001e5d0\U0001e5f1", "\U00031350\U00031351漢", "\u20c1 \u1c89\u1c8a \ua7cb\ua7dc",
    "e\u0301\u0323\u0302", "\u1ec7 \u0065\u0323\u0302 q\u0307\u0323", "\u1100\u1161\u11a8 각 가\u11a8 \u1112\u1161\u11ab\u1100\u1173\u11af", "ﬁ ﬀ ﷺ ㍿ ½ ² Ⅻ ㎏ ｶﾞ ㌔",
    "\u0344 \u0958 \u2adc \ufb1d \U0001d15e", "a\u0315\u0300\u05ae\u0062", "İSTANBUL ΣΊΣΥΦΟΣ ẞ ǅ Ω K Å", "\u0b47\u0b3e \u0b47\u0300\u0b3e \u09c7\u09be", "\u0300\u0301 start",
    "\u05d0\u05b7\u05bc \u0627\u0653\u0654", "\u32ff \ua7f2 \U0001f1e6\u0301", "... !?!? --x-- $9.99 + <=> ^`|~ ¡¿« » „“”", "12 34५६ ½²Ⅻ① 7a8b9 𝟘𝟙", "▁ ▁a a▁b ▁▁ x ▁", " a  b   c ",
    "<unk> <s>a</s> <0x41> <0x0A>", "tab\there\nnew\n\n\nlines", "ABCdef GHIjkl aBcD XMLHttpRequest", "中文English混合123数字", "don’t DON'T we’LL I’m", "\U000e0001\U000f0000\U0010fffd\ue000",
]


def texts():
    return base.texts() + MORE


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = base.LLAMA3.replace("{1,3}", "")
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")
DEEPSEEK = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")
KIMI = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"


def byte_level(prefix=False, regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def split(pattern, behavior="Isolated", invert=False, string=False):
    return {"type": "Split", "pattern": {"String" if string else "Regex": pattern}, "behavior": behavior, "invert": invert}


def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


def bytes_kind(*steps, normalizer=None, post=None, **model):
    pre = sequence("pretokenizers", *steps, byte_level()) if steps else byte_level(regex=True)
    return {"model": ["bytes", model], "normalizer": normalizer, "pre_tokenizer": pre, "decoder": byte_level(), "post_processor": post}


def metaspace(scheme, splits):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": splits}


def replace(pattern, content):
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


LLAMA2_DECODER = sequence("decoders", replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"},
                          {"type": "Strip", "content": " ", "start": 1, "stop": 0})
BOS = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
       "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
       "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}


def chars_kind(normalizer=None, pre=None, decoder=LLAMA2_DECODER, post=None, **model):
    return {"model": ["chars", {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>", **model}], "normalizer": normalizer,
            "pre_tokenizer": pre, "decoder": decoder, "post_processor": post}


def kinds():
    """NAME: tokenizer.json, whose model is [the vocabulary, other keys]."""
    prepend = {"type": "Prepend", "prepend": "▁"}
    spaces = replace(" ", "▁")
    short = sequence("decoders", replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"})
    digits = {"type": "Digits", "individual_digits": True}
    result = {
        "gpt2": bytes_kind(),
        "llama3": bytes_kind(split(base.LLAMA3), ignore_merges=True, post=sequence("processors", byte_level(), BOS)),
        "qwen2": bytes_kind(split(QWEN2), normalizer={"type": "NFC"}),
        "cl100k": bytes_kind(split(CL100K)),
        "o200k": bytes_kind(split(O200K)),
        "deepseek": bytes_kind(split(r"\p{N}{1,3}"), split(r"[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK)),
        "kimi": bytes_kind(split(KIMI)),
        "bloom": bytes_kind(split(BLOOM)),
        "smollm": {**bytes_kind(), "pre_tokenizer": sequence("pretokenizers", digits, byte_level(regex=True))},
        "digits": bytes_kind({"type": "Digits", "individual_digits": False}),
        "llama2": chars_kind(sequence("normalizers", prepend, spaces), post=BOS),
        "llama2-words": chars_kind(sequence("normalizers", prepend, spaces), ignore_merges=True),
        "mistral": chars_kind(None, metaspace("first", False)),
        "gemma": chars_kind(spaces, split(" ", "MergedWithPrevious", string=True), short, fuse_unk=True),
        "metaspace-always": chars_kind(None, metaspace("always", True), metaspace("always", True)),
        "metaspace-first": chars_kind(None, metaspace("first", True), metaspace("first", True)),
        "metaspace-never": chars_kind(None, metaspace("never", True), metaspace("never", True)),
        "metaspace-digits": chars_kind(None, sequence("pretokenizers", metaspace("always", True), digits), short),
        "chars-unknown": chars_kind(None, metaspace("always", False), short, byte_fallback=False),
        "chars-unfused": chars_kind(None, metaspace("always", False), short, byte_fallback=False, fuse_unk=False),
        "chars-dropped": chars_kind(None, metaspace("always", False), short, byte_fallback=False, unk_token=None),
        "nfc": bytes_kind(normalizer={"type": "NFC"}),
        "nfd": bytes_kind(normalizer={"type": "NFD"}),
        "nfkc": bytes_kind(normalizer={"type": "NFKC"}),
        "nfkd": bytes_kind(normalizer={"type": "NFKD"}),
        "lowercase": bytes_kind(normalizer={"type": "Lowercase"}),
        "nfkc-lower-replace": bytes_kind(normalizer=sequence("normalizers", {"type": "NFKC"}, {"type": "Lowercase"}, replace("the", "«The»"))),
        "punct-categories": bytes_kind(split(r"\p{P}+"), split(r"\p{S}"), split(r"\p{M}+|\p{Z}|\p{C}")),
    }
    for behavior in ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"):
        result[f"punctuation-{behavior}"] = bytes_kind({"type": "Punctuation", "behavior": behavior})
        result[f"split-{behavior}"] = bytes_kind(split(r"\s|[aeiou]", behavior))
        result[f"split-{behavior}-inverted"] = bytes_kind(split(r"\w+", behavior, True))
    return result


def vocabularies():
    """Two small models: over bytes, and over characters with <unk>, <s>, </s> and fallback bytes."""
    corpus = (base.PROSE + base.CODE + base.SYMBOLS) * 3

    def train(pre_tokenizer, size, alphabet, lines, limit):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, limit_alphabet=limit, show_progress=False))
        return json.loads(tokenizer.to_str())["model"]

    by_bytes = train(pre_tokenizers.ByteLevel(add_prefix_space=False), 420, pre_tokenizers.ByteLevel.alphabet(), corpus, 256)
    lines = [line.replace(" ", "▁") for line in corpus]
    chars = train(pre_tokenizers.Split("▁", "merged_with_next"), 300, ["▁"], lines, 120)
    words = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    words += [w for w, _ in sorted(chars["vocab"].items(), key=lambda item: item[1])]
    words += ["▁▁", "▁▁▁▁"]
    merges = chars["merges"] + [["▁", "▁"], ["▁▁", "▁▁"]]
    return {"bytes": {"vocab": by_bytes["vocab"], "merges": by_bytes["merges"]},
            "chars": {"vocab": {w: i for i, w in enumerate(words)}, "merges": merges}}


def whole(kind, vocabs):
    """The text of tokenizer.json."""
    name, keys = kind["model"]
    first = len(vocabs[name]["vocab"])
    special = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    added = [{"id": first, "content": "<|endoftext|>", **special}, {"id": first + 1, "content": "<|im|>", **special},
             {"id": first + 2, "content": "tool:call", **special, "normalized": True, "special": False},
             {"id": first + 3, "content": "<strip>", **special, "lstrip": True, "rstrip": True, "special": False},
             {"id": first + 4, "content": "É<T>", **special, "normalized": True, "special": False}]
    if name == "chars":
        added = [{"id": i, "content": w, **special} for i, w in enumerate(["<unk>", "<s>", "</s>"])] + added
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
             "byte_fallback": False, "ignore_merges": False, **keys, **vocabs[name]}
    return json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **kind, "model": model}, ensure_ascii=False)


def code_texts():
    cut = pre_tokenizers.Split(Regex(r"[\p{Cn}\p{Co}]"), "removed")
    every = "".join(chr(c) for c in range(0x110000) if not 0xd800 <= c < 0xe000)
    assigned = "".join(part for part, _ in cut.pre_tokenize_str(every))
    return [form for c in assigned for form in (f"a{c}b", f" {c}{c}", f"1{c} \u0301{c}")]


def ids_of(tokenizer, strings, special):
    tokenizer.encode_special_tokens = not special
    result = []
    for at in range(0, len(strings), 20000):
        result += [e.ids for e in tokenizer.encode_batch_fast(strings[at:at + 20000], add_special_tokens=False)]
    return result


def fold(ids, value=0):
    """A hash of 53 bits, which JSON can hold."""
    for i in [len(ids)] + ids:
        value = (value ^ (i + 1)) * 0x100000001b3 & (1 << 53) - 1
    return value


def fold_all(lists):
    value = 0
    for ids in lists:
        value = fold(ids, value)
    return value


def run_ours(build, source, strings, special):
    """Our ids and decoded bytes of each string."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, n) for n in ("tokenizer.json", "texts", "out")]
        with open(paths[0], "w", encoding="utf-8") as file:
            file.write(source)
        with open(paths[1], "wb") as file:
            for string in strings:
                data = string.encode()
                file.write(struct.pack("<i", len(data)) + data)
        subprocess.run([os.path.join(build, "test_tokenizer_workbench"), "texts" if special else "ordinary", *paths], check=True,
                       stdout=subprocess.DEVNULL)
        data = open(paths[2], "rb").read()
    ids, back, at = [], [], 0
    while at < len(data):
        count, = struct.unpack_from("<i", data, at)
        ids.append(list(struct.unpack_from(f"<{count}i", data, at + 4)))
        at += 4 + 4 * count
        length, = struct.unpack_from("<i", data, at)
        back.append(data[at + 4:at + 4 + length])
        at += 4 + length
    return ids, back


def compare(build, name, source, codes):
    tokenizer = Tokenizer.from_str(source)
    differences = []
    total = 0
    for what, strings, special in (("text", texts(), True), ("ordinary text", texts(), False), ("code point", codes, True)):
        theirs = ids_of(tokenizer, strings, special)
        ours, back = run_ours(build, source, strings, special)
        total += len(strings)
        differences += [(what, s, t, o) for s, t, o in zip(strings, theirs, ours) if t != o]
        for s, t, b in zip(strings, theirs, back) if what != "code point" else []:
            text = tokenizer.decode(t, skip_special_tokens=False)
            if "\ufffd" not in text and text.encode() != b:
                differences.append(("decoded " + what, s, text, b))
    print(f"{'DIFFERENT' if differences else 'equal'}: {name}: {total} texts, {len(differences)} differ", flush=True)
    for difference in differences[:4]:
        print("   ", *map(repr, difference))
    return not differences


def write_golden(path):
    """The vocabularies of an existing file are kept: the package's trainer orders equal pairs at random."""
    vocabs = json.load(open(path, encoding="utf-8"))["models"] if os.path.exists(path) else vocabularies()
    all_kinds, codes = kinds(), code_texts()
    out = {"texts": texts(), "models": vocabs, "kinds": {}}
    for name, kind in all_kinds.items():
        source = whole(kind, vocabs)
        tokenizer = Tokenizer.from_str(source)
        data = json.loads(source)
        data["model"] = {**{k: v for k, v in data["model"].items() if k not in ("vocab", "merges")}, "of": kind["model"][0]}
        out["kinds"][name] = {"tokenizer": data, "special": [fold(i) for i in ids_of(tokenizer, texts(), True)],
                              "ordinary": fold_all(ids_of(tokenizer, texts(), False)), "codes": fold_all(ids_of(tokenizer, codes, True))}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(out, file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")


def main():
    if sys.argv[1:2] == ["--golden"]:
        write_golden(sys.argv[2] if len(sys.argv) > 2 else GOLDEN)
        return 0
    vocabs, codes = vocabularies(), code_texts()
    chosen = sys.argv[2:] or kinds()
    print(f"{len(chosen)} kinds, {len(texts())} texts, {len(codes) // 3} code points in three contexts")
    return 0 if all([compare(sys.argv[1], name, whole(kinds()[name], vocabs), codes) for name in chosen]) else 1


if __name__ == "__main__":
    sys.exit(main())
