#!/usr/bin/env python3
"""Writes the golden vectors of the tokenizer with the `tokenizers` package.

    python3 tools/tokenizer_vectors.py [tests/train/golden/tokenizer]

Three small tokenizers are trained on the text below: one that splits like GPT-2 (ByteLevel with its regex, merges as
strings), one like Llama 3 (Split by regex, ByteLevel without, ignore_merges, merges as pairs), and one like RoBERTa
(add_prefix_space). For each, NAME.json is the tokenizer and NAME-vectors.json has the ids of the texts: with special
tokens recognized ("special") and with special tokens read as ordinary text ("ordinary").
tests/train/test_tokenizer_golden.c compares the C code with them.
"""
import json
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

PROSE = [
    "It was a bright morning, and the harbour's boats weren't yet awake; we'd been told they'll sail at 10:45.",
    "I've said it before: don't trust a number you didn't measure. She's right, they're wrong, I'm tired, you'll see.",
    "THE OLD MAN'S DOG WON'T BARK, IT'LL BITE — they'VE seen it'S teeth.",
    "Le cœur a ses raisons que la raison ne connaît point; où étiez-vous à Noël, garçon?",
    "Die Größe der Übung überraschte den müden Läufer; Straße, Öl, ÄRGER.",
    "El niño comió piñas en el jardín. ¿Qué pasó? ¡Nada!",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Ёлка зимой и летом.",
    "Η γρήγορη αλεπού πηδάει πάνω από το τεμπέλικο σκυλί.",
    "敏捷的棕色狐狸跳过了懒狗。今天天气很好,我们去公园散步吧!一二三四五六七八九十",
    "いろはにほへと ちりぬるを わかよたれそ つねならむ。カタカナとひらがなと漢字。",
    "다람쥐 헌 쳇바퀴에 타고파. 오늘은 날씨가 좋네요.",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر. صفر ١٢٣٤٥",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה.",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण। १२३४",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน",
    "Zażółć gęślą jaźń. Příliš žluťoučký kůň úpěl ďábelské ódy. Pijamalı hasta yağız şoföre çabucak güvendi İıĞğ.",
]
CODE = [
    "int main(int argc, char **argv)\n{\n    for (int i = 0; i < argc; i++)\n        printf(\"%s\\n\", argv[i]);\n    return 0;\n}\n",
    "def f(x, *, y=None):\n\tif x is None:\n\t\treturn {'a': [1, 2.5e-3, 0xFF], \"b\": y or 'c'}\n\n\n    # done\n",
    "SELECT name, COUNT(*) FROM users WHERE id >= 1000 AND NOT deleted GROUP BY name;\r\n-- end\r\n",
    "<div class=\"a b\"><a href='https://example.org/?q=1&r=2#x'>link</a></div>\n",
    "let v: Vec<u8> = (0..=255).filter(|b| b % 2 == 0).collect(); // =>::<>!==&&||",
    "$ ls -la /usr/share | grep -v '^d' > out.txt 2>&1 && echo $?\n",
]
SYMBOLS = [
    "😀😃👍🏽👨‍👩‍👧‍👦🇫🇷🏳️‍🌈 ok ☃️❤️ © ™ ½ ² Ⅻ ④ 10⁻³",
    "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β = ¬(¬α ∨ β), ∑ᵢ xᵢ² ≤ ∞ → ∂f/∂x ≠ √2·π",
    "e\u0301 vs \u00e9, a\u0308\u0323, \u1e9b\u0323, n\u0303o, \ufb01n, \u212b \u017f \u0130 \u1e9e",
]
SPACES = [
    " ", "  ", "   x", "x   ", "\n", "\n\n\n", "\r\n\r\n", " \n \n  a", "\t\tb\t", "a\u00a0b\u00a0\u00a0c", "\u3000\u3000全角\u3000",
    "a\u2003\u2003b \u2009c", "a\u180eb \u180e\u180e c", "a\u200bb\u200b \u200b", "\u0085x\u0085\u0085y", "\u2028p\u2029\u2029q", "\v\f x\v\f",
    "end  \n", "  two\n   three\n\n    four", "tab\t space \t mix\n\t", "\ufeffbom", "\x00\x01\x1f\x7f control \x00", "a\u1680 \u1680b", "\u202f1\u205f2",
]
NUMBERS = ["0", "12", "123", "1234", "1234567890", "3.14159", "1,000,000.00", "v1.2.3-rc4", "٣٤٥٦ १२३ Ⅷ ½ 𝟘𝟙𝟚𝟛", "1st 2nd 3rd 100th", "007 0b1010 0o17"]
QUOTES = ["'s", "'S", "it's", "IT'S", "'", "''", "'''s", "o'clock 'twas '90s", "’s it’s", "'ſ 'LL 'rE 'vE'm'D", "don't'll've", "x's's", " 's 't"]
ADDED = [
    "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|>", " <|endoftext|> ", "<|endoftext", "<|endoftext||>", "<|im|>", "x <|im|>\n  y",
    "<|im_longer|>", "<|im_longer", "<|im|", "tool:call and tool:caller", "a tool:call", "<strip>", "a  <strip>  b", "a \u3000<strip>\n\t<strip> b<strip>", "<|é|>é",
    "<|endoftext|>'s  <|im|> tool:call", "<raw>", "<|im|><raw> <raw><|endoftext|>", "<|im|><strip><raw>tool:call",
]


def noise(random_, count):
    """Strings of random characters from many scripts, so that every rule is also tested outside of clean text."""
    ranges = [(0x20, 0x7e), (0x20, 0x7e), (0xa0, 0x24f), (0x370, 0x3ff), (0x400, 0x4ff), (0x590, 0x6ff), (0x900, 0x97f), (0xe00, 0xe7f), (0x1f00, 0x1fff),
              (0x2000, 0x206f), (0x20a0, 0x22ff), (0x3000, 0x30ff), (0x4e00, 0x4fff), (0xac00, 0xad00), (0xff00, 0xff60), (0x10330, 0x1034a), (0x1d7ce, 0x1d7ff), (0x1f300, 0x1f64f)]
    for _ in range(count):
        out = []
        for _ in range(random_.randrange(1, 40)):
            kind = random_.random()
            if kind < 0.25:
                out.append(random_.choice([" ", " ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u3000"]))
            elif kind < 0.35:
                out.append(random_.choice(["'s", "'t", "'ll", "'RE", "123", "the", "ing", " a"]))
            else:
                low, high = random_.choice(ranges)
                out.append(chr(random_.randint(low, high)))
        yield "".join(out)


def texts():
    random_ = random.Random(20240229)
    fixed = PROSE + CODE + SYMBOLS + SPACES + NUMBERS + QUOTES + ADDED
    joined = [" ".join(PROSE), "\n".join(CODE), "".join(SPACES), " \n".join(NUMBERS + QUOTES), "".join(ADDED)]
    long = ["a" * 300, "ab" * 200, " " * 300, "\n" * 150, "的" * 200, "e\u0301" * 100, "'" * 90, "1" * 200, "😀" * 70, "the" * 80]
    return [""] + fixed + joined + long + list(noise(random_, 120))


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def make(pre_tokenizer, vocab, ignore_merges, specials):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=specials, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((PROSE + CODE + SYMBOLS) * 3 + PROSE[:3] * 5 + CODE * 2, trainer)
    return tokenizer


def gpt2():
    tokenizer = make(pre_tokenizers.ByteLevel(add_prefix_space=False), 1000, False, ["<|endoftext|>"])
    tokenizer.add_special_tokens([AddedToken("<|im|>", normalized=False), AddedToken("<|im_longer|>", normalized=True)])
    return tokenizer


def llama3():
    split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
    tokenizer = make(pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), 1300, True, [])
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|endoftext|>", "<|im|>", "<|é|>"])
    tokenizer.add_tokens(["tool:call", "tool:caller", AddedToken("<strip>", lstrip=True, rstrip=True),
                          AddedToken("<raw>", normalized=False), AddedToken("im|><raw>", normalized=False)])
    return tokenizer


def prefixed():
    """ByteLevel with add_prefix_space, like RoBERTa."""
    tokenizer = make(pre_tokenizers.ByteLevel(add_prefix_space=True), 400, False, ["</s>"])
    tokenizer.add_tokens(["tool:call"])
    return tokenizer


def write(folder, name, tokenizer, legacy_merges):
    data = json.loads(tokenizer.to_str())
    if legacy_merges:
        data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    source = json.dumps(data, ensure_ascii=False, indent=None, separators=(",", ":"))
    tokenizer = Tokenizer.from_str(source)
    vectors = []
    for text in texts():
        tokenizer.encode_special_tokens = False
        special = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = True
        ordinary = tokenizer.encode(text, add_special_tokens=False).ids
        vectors.append({"text": text, "special": special, "ordinary": "same" if ordinary == special else ordinary})
    with open(f"{folder}/{name}.json", "w", encoding="utf-8") as file:
        file.write(source + "\n")
    with open(f"{folder}/{name}-vectors.json", "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(v, separators=(",", ":")) for v in vectors) + "\n]\n")


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "tests/train/golden/tokenizer"
    write(folder, "gpt2", gpt2(), legacy_merges=True)
    write(folder, "llama3", llama3(), legacy_merges=False)
    write(folder, "prefixed", prefixed(), legacy_merges=False)


if __name__ == "__main__":
    main()
