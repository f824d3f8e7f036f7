#!/usr/bin/env python3
"""sifr's tokenizer against the `tokenizers` package, one thread each, in one run. Prints one JSON object.

    python3 bench/tokenizer.py [--build build] [--text FILE] [--mb 8] [--vocab 16384]

The text (by default: Python's own library and /usr/share/doc) is split into documents of whole lines of about 4 KB.
sifr learns a vocabulary from it. Both encode the documents with that tokenizer.json, with an empty cache in every
round, and the ids must be equal. For `tokenizers` its fastest encoding function counts. Both also learn a vocabulary
of the same size. Seconds are CPU time, which depends less on other load of the machine.
"""
import argparse
import array
import glob
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
DOCUMENT_BYTES = 4096
ROUNDS = 3


def gather(limit):
    """Valid UTF-8 without NUL, from text that every machine has."""
    out = bytearray()
    for pattern in (sysconfig.get_path("stdlib") + "/**/*.py", "/usr/share/doc/**/*"):
        for path in sorted(glob.glob(pattern, recursive=True)):
            if os.path.isfile(path) and not path.endswith(".gz") and len(out) < limit:
                data = open(path, "rb").read()
                if b"\0" not in data:
                    out += data.decode("utf-8", "ignore").encode()
    return bytes(out[:limit]).decode("utf-8", "ignore").encode()


def documents(text):
    at = 0
    while at < len(text):
        end = text.find(b"\n", at + DOCUMENT_BYTES - 1) + 1 if len(text) - at > DOCUMENT_BYTES else 0
        end = end or len(text)
        yield text[at:end].decode()
        at = end


def sifr(build, *arguments):
    out = subprocess.run([os.path.join(build, "test_tokenizer_workbench"), *arguments], check=True, stdout=subprocess.PIPE).stdout
    return json.loads(out)


def peer_encode(path, docs):
    """The best seconds over the encoding functions of the package, and the ids."""
    from tokenizers import Tokenizer
    ways = {
        "encode": lambda t: [t.encode(d, add_special_tokens=False) for d in docs],
        "encode_batch": lambda t: t.encode_batch(docs, add_special_tokens=False),
        "encode_batch_fast": lambda t: t.encode_batch_fast(docs, add_special_tokens=False),
    }
    best, ids = None, None
    for name, way in ways.items():
        for _ in range(ROUNDS):
            tokenizer = Tokenizer.from_file(path)
            tokenizer.encode_special_tokens = True
            start = time.process_time()
            encodings = way(tokenizer)
            seconds = time.process_time() - start
            if best is None or seconds < best[0]:
                best = (seconds, name)
        ids = array.array("i", (i for e in encodings for i in e.ids))
    return best, ids


def peer_train(docs, vocab):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=vocab, min_frequency=2, show_progress=False, special_tokens=[],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    start = time.process_time()
    tokenizer.train_from_iterator(docs, trainer)
    return time.process_time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--text")
    parser.add_argument("--mb", type=float, default=8)
    parser.add_argument("--vocab", type=int, default=16384)
    options = parser.parse_args()
    text = open(options.text, "rb").read() if options.text else gather(int(options.mb * 1e6))
    docs = list(documents(text))
    with tempfile.TemporaryDirectory() as folder:
        text_path, json_path, ids_path = (os.path.join(folder, n) for n in ("text", "tokenizer.json", "ids"))
        with open(text_path, "wb") as file:
            file.write(text)
        trained = sifr(options.build, "train", text_path, str(options.vocab), json_path)
        ours = sifr(options.build, "encode", json_path, text_path, ids_path)
        (peer_seconds, way), peer_ids = peer_encode(json_path, docs)
        our_ids = array.array("i", open(ids_path, "rb").read())
    peer_train_seconds = peer_train(docs, options.vocab - 1)
    megabytes = len(text) / 1e6
    result = {
        "bytes": len(text), "vocab": trained["vocab"], "tokens": ours["tokens"], "equal": our_ids == peer_ids,
        "encode": {"sifr_mb_s": round(megabytes / ours["seconds"], 2), "tokenizers_mb_s": round(megabytes / peer_seconds, 2),
                   "tokenizers_call": way, "ratio": round(peer_seconds / ours["seconds"], 2)},
        "train": {"sifr_s": round(trained["seconds"], 3), "tokenizers_s": round(peer_train_seconds, 3),
                  "ratio": round(peer_train_seconds / trained["seconds"], 2)},
    }
    print(json.dumps(result, indent=2))
    return 0 if result["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
