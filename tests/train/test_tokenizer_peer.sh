#!/bin/bash
# A vocabulary learnt by sifr gives the same ids and merges in Hugging Face `tokenizers`. Skipped if
# the package is not installed.
set -eu
if ! command -v python3 >/dev/null; then
    echo "SKIPPED: python3 is not installed"
    exit 77
fi
exec python3 tools/tokenizer_peer.py "$1"
