#!/usr/bin/env python3
"""Checks a vocabulary learned by sifr with the `tokenizers` package.

    python3 tools/tokenizer_peer.py BUILD [TEXT]

sifr learns a vocabulary from TEXT (by default the golden texts and the sources of this repository) and writes
tokenizer.json. The package loads it and must produce the same ids and decode them to the same text. Trained on the
same text, it must find the same merges in the same order. Prints what was compared. Exit code 1: a difference;
77: the package is missing.
"""
import array
import glob
import json
import os
import subprocess
import sys
import tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"
VOCAB = 2000
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def own_text():
    parts = [v["text"] for v in json.load(open(f"{ROOT}/tests/train/golden/tokenizer/gpt2-vectors.json", encoding="utf-8"))]
    for path in sorted(glob.glob(f"{ROOT}/src/*/*.[ch]")):
        parts.append(open(path, encoding="utf-8").read())
    return "\n".join(parts)


def documents(text):
    """Split like tests/train/test_tokenizer_workbench.c."""
    at = 0
    while at < len(text):
        end = text.find(b"\n", at + 4095) + 1 if len(text) - at > 4096 else 0
        end = end or len(text)
        yield text[at:end].decode()
        at = end


def peer_merges(text, vocab):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=vocab, min_frequency=2, show_progress=False, special_tokens=[],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([text], trainer)
    return json.loads(tokenizer.to_str())["model"]["merges"]


def main():
    try:
        from tokenizers import Tokenizer
    except ImportError:
        print("SKIPPED: the Python package tokenizers is not installed")
        return 77
    build = sys.argv[1]
    text = open(sys.argv[2], encoding="utf-8").read() if len(sys.argv) > 2 else own_text()
    workbench = os.path.join(build, "test_tokenizer_workbench")
    with tempfile.TemporaryDirectory() as folder:
        text_path, json_path, ids_path = (os.path.join(folder, n) for n in ("text", "tokenizer.json", "ids"))
        with open(text_path, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        subprocess.run([workbench, "train", text_path, str(VOCAB), json_path], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([workbench, "encode", json_path, text_path, ids_path], check=True, stdout=subprocess.DEVNULL)
        ours = array.array("i", open(ids_path, "rb").read())
        tokenizer = Tokenizer.from_file(json_path)
        merges = json.load(open(json_path, encoding="utf-8"))["model"]["merges"]
    tokenizer.encode_special_tokens = True
    theirs, back = array.array("i"), []
    for document in documents(text.encode()):
        ids = tokenizer.encode(document, add_special_tokens=False).ids
        theirs.extend(ids)
        back.append(tokenizer.decode(ids, skip_special_tokens=False))
    checks = {
        f"{len(ours)} ids": ours == theirs,
        "text decoded by the package": "".join(back) == text,
        f"vocabulary of {tokenizer.get_vocab_size()}": tokenizer.get_vocab_size() == len(merges) + 257,
        "<|endoftext|> is the last id": tokenizer.token_to_id("<|endoftext|>") == len(merges) + 256,
        f"{len(merges)} merges learnt by both": merges == peer_merges(text, VOCAB - 1),
    }
    for what, equal in checks.items():
        print(f"{'equal' if equal else 'DIFFERENT'}: {what}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
