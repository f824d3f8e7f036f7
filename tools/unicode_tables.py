#!/usr/bin/env python3
"""Writes the Unicode tables of the tokenizer, as the `tokenizers` package has them.

    python3 tools/unicode_tables.py [src/train/tokenizer/unicode_data.c]

Each step of the package has tables of its own Unicode version: regular expressions 16 (Oniguruma), Digits and Lowercase
17 (Rust), Punctuation 8, NFC and its relatives 9. So the tables are not taken from a Unicode version: the script asks
the package about every code point, and writes what it does. Combining classes are those of Python, as far as the
package orders the characters by them. Made with tokenizers 0.23.3.
"""
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = "Cn Cc Cf Co Cs Ll Lm Lo Lt Lu Mc Me Mn Nd Nl No Pc Pd Pe Pf Pi Po Ps Sc Sk Sm So Zl Zp Zs".split()
SCRIPTS = ("Arabic Armenian Bengali Bopomofo Canadian_Aboriginal Cherokee Common Coptic Cyrillic Devanagari Ethiopic Georgian Greek "
           "Gujarati Gurmukhi Han Hangul Hebrew Hiragana Inherited Kannada Katakana Khmer Lao Latin Malayalam Mongolian Myanmar Oriya "
           "Runic Sinhala Syriac Tamil Telugu Thaana Thai Tibetan Tifinagh Yi").split()
FLAGS = ["Alphabetic", "White_Space", "Uppercase", "Lowercase", "Punct"]      # of regular expressions, as \p{NAME}
CODES = [c for c in range(0x110000) if not 0xd800 <= c < 0xe000]
TEXT = "".join(map(chr, CODES))


def isolated(pre_tokenizer):
    """The code points that the pre-tokenizer removes."""
    found = bytearray(b"\1") * len(CODES)
    for _, (start, end) in pre_tokenizer.pre_tokenize_str(TEXT):
        found[start:end] = bytes(end - start)
    return [CODES[i] for i, f in enumerate(found) if f]


def matched(regex):
    return isolated(pre_tokenizers.Split(Regex(regex), "removed"))


def digits():
    """Those that Digits puts apart from a letter before them."""
    step = pre_tokenizers.Digits(individual_digits=True)
    return [c for c in CODES if len(step.pre_tokenize_str("a" + chr(c))) == 2]


def properties():
    """One row per code point: category, script + 1, flags."""
    category, script, flags = bytearray(0x110000), bytearray(0x110000), bytearray(0x110000)
    for table, names in ((category, CATEGORIES), (script, SCRIPTS)):
        for number, name in enumerate(names):
            for c in matched(rf"\p{{{name}}}") if name != "Cs" else range(0xd800, 0xe000):
                table[c] = number + (table is script)
    sets = [matched(rf"\p{{{name}}}") for name in FLAGS]
    sets += [digits(), isolated(pre_tokenizers.Punctuation("removed"))]
    for bit, members in enumerate(sets):
        for c in members:
            flags[c] |= 1 << bit
    rows, last = [], None
    for c in range(0x110000):
        row = (category[c], script[c], flags[c])
        if row != last:
            rows.append((c, *row))
        last = row
    return rows


def lowercase():
    """Ranges of every `step`-th code point whose lower case is `delta` away; the others are single."""
    lower = normalizers.Lowercase().normalize_str
    pairs = [(c, lower(chr(c))) for c in CODES if lower(chr(c)) != chr(c)]
    special = [c for c, l in pairs if len(l) != 1]
    assert special == [0x130], special
    rows = []
    for c, l in pairs:
        delta = ord(l[0]) - c
        if c == 0x130:
            continue
        if rows and rows[-1][3] == delta and c - rows[-1][1] in (1, 2) and rows[-1][2] in (0, c - rows[-1][1]):
            rows[-1][2] = c - rows[-1][1]
            rows[-1][1] = c
        else:
            rows.append([c, c, 0, delta])
    return [(first, last, step or 1, delta) for first, last, step, delta in rows]


def combining():
    decompose = normalizers.NFD().normalize_str
    low, high = "\u0334", "\u0345"                                           # classes 1 and 240
    rows = []
    for c in CODES:
        value = unicodedata.combining(chr(c))
        if decompose(chr(c)) != chr(c):
            continue
        ordered = decompose(high + chr(c)) != high + chr(c) or decompose(chr(c) + low) != chr(c) + low
        assert not ordered or value, hex(c)
        if ordered:
            if rows and rows[-1][1] == c - 1 and rows[-1][2] == value:
                rows[-1][1] = c
            else:
                rows.append([c, c, value])
    return rows


def decompositions(name):
    decompose = getattr(normalizers, name)().normalize_str
    return {c: [ord(x) for x in decompose(chr(c))] for c in CODES if not 0xac00 <= c < 0xd7a4 and decompose(chr(c)) != chr(c)}


def compositions(canonical):
    compose = normalizers.NFC().normalize_str
    rows = []
    for c, parts in canonical.items():
        if len(parts) > 1 and compose(chr(c)) == chr(c):
            first = compose("".join(map(chr, parts[:-1])))
            assert len(first) == 1, hex(c)
            rows.append((ord(first), parts[-1], c))
    return sorted(rows)


def write_list(out, head, items):
    out.write(f"\n{head} = {{\n")
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > 100:
            out.write(line + "\n")
            line = "   "
        line += f" {item},"
    out.write(line + "\n};\n")


def write(out):
    canonical, compatible = decompositions("NFD"), decompositions("NFKD")
    pool, rows = [], []
    for c in sorted(compatible):
        nfd, nfkd = canonical.get(c, []), compatible[c]
        rows.append((c, len(pool), len(nfd), len(nfkd) if nfkd != nfd else 0))
        pool += nfd + (nfkd if nfkd != nfd else [])
    out.write(f"/* unicode_data -- the tables of unicode.h, written by tools/unicode_tables.py with tokenizers {tokenizers.__version__}. */\n"
              '/* clang-format off */\n#include "train/tokenizer/unicode.h"\n')
    write_list(out, "const char *const unicode_categories[UNICODE_CATEGORIES]", [f'"{n}"' for n in CATEGORIES])
    write_list(out, "const char *const unicode_scripts[UNICODE_SCRIPTS]", [f'"{n}"' for n in [""] + SCRIPTS])
    tables = [
        ("unicode_run unicode_runs", properties()),
        ("unicode_lower unicode_lowers", lowercase()),
        ("unicode_combining unicode_combinings", combining()),
        ("unicode_parts unicode_decompositions", rows),
        ("unicode_pair unicode_pairs", compositions(canonical)),
    ]
    for head, table in tables:
        write_list(out, f"const struct {head}[]", [f"{{{', '.join(hex(v) if i == 0 else str(v) for i, v in enumerate(row))}}}" for row in table])
        out.write(f"const size_t {head.split()[1]}_count = {len(table)};\n")
    write_list(out, "const uint32_t unicode_pool[]", [hex(c) for c in pool])


def main():
    with open(sys.argv[1] if len(sys.argv) > 1 else "src/train/tokenizer/unicode_data.c", "w", encoding="utf-8") as out:
        write(out)


if __name__ == "__main__":
    main()
