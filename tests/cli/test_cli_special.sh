#!/usr/bin/env bash
# Special tokens and metadata of a Hugging Face directory: they are used as its files say, and
# fine-tuning and exporting keep the files byte for byte.
. "$(dirname "$0")/common.sh" "$@"
sifr() { "$sifr" "$@"; }
make_text >text.txt
sizes=(--model.arch=llama --model.layers=1 --model.width=32 --model.heads=2 --model.kv_heads=1 --model.ff=48 --model.vocab=272 --model.context=32 --model.tied=no)
ok sifr train "${sizes[@]}" --data.path=text.txt --data.tokenizer=bytes --train.steps=2 --train.eval_every=0 --out=start --quiet
ok sifr export start bare

# A directory as people publish them: 257 begins texts, 258 ends them, generation also stops at 259.
added() { printf '    {"id": %d, "content": "%s", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}' "$@"; }
template='{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [257], "tokens": ["<s>"]}}}'
make_model() { # DIR: `bare` with special tokens
    cp -r bare "$1"
    awk -v more=",\n$(added 257 '<s>'),\n$(added 258 '</s>'),\n$(added 259 '<|im_end|>'),\n$(added 260 '<pad>')" \
        '/"id": 256/ { print $0 more; next } { print }' bare/tokenizer.json >"$1/tokenizer.json"
    sed -i "s#\"post_processor\": null#\"post_processor\": $template#" "$1/tokenizer.json"
    sed -i 's/"bos_token_id": [0-9a-z]*/"bos_token_id": 257/; s/"eos_token_id": [0-9a-z]*/"eos_token_id": [258, 259],\n  "pad_token_id": 260/' "$1/config.json"
    printf '{"eos_token_id":[258,259], "temperature": 0.7,"do_sample":true}' >"$1/generation_config.json"
    printf '{ "tokenizer_class": "LlamaTokenizer",\t"bos_token":{"content":"<s>"}, "eos_token":"</s>",\n "chat_template":"{%% for m in messages %%}{{m}}{%% endfor %%}"}' >"$1/tokenizer_config.json"
    printf '{"bos_token": "<s>",   "pad_token": "<pad>"}' >"$1/special_tokens_map.json"
    printf '{"<pad>": 260}\n\n' >"$1/added_tokens.json"
    printf '{{ bos_token }}{%% for message in messages %%}\r\n{%% endfor %%}' >"$1/chat_template.jinja"
}
kept='generation_config.json tokenizer_config.json special_tokens_map.json added_tokens.json chat_template.jinja tokenizer.json'
same_files() { # DIR
    local name
    for name in $kept; do cmp -s "model/$name" "$1/$name" || fail "$1/$name has changed"; done
    grep -q '"bos_token_id": 257' "$1/config.json" || fail "bos: $(cat "$1/config.json")"
    grep -q '"eos_token_id": \[258, 259\]' "$1/config.json" || fail "eos: $(cat "$1/config.json")"
    grep -q '"pad_token_id": 260' "$1/config.json" || fail "pad: $(cat "$1/config.json")"
}
make_model model
fine=(--model.path=model --data.path=text.txt --train.steps=2 --train.eval_every=0)

# 1. The round trip: fine-tune, resume, export, export again; the header names the tokens.
expect 75 'saved in' sifr train "${fine[@]}" --out=run --train.stop_at=1
has 'tokens +texts begin with <s> \(257\) and end with </s> \(258\); generation stops at </s> \(258\), <\|im_end\|> \(259\)'
ok sifr train "${fine[@]}" --out=run --quiet
same_files run/checkpoints/step-2
ok sifr inspect run --verify
ok sifr export run out-1
same_files out-1
ok sifr export out-1 out-2 --dtype=bf16
same_files out-2
ok sifr train --model.path=out-2 --data.path=text.txt --train.steps=1 --train.eval_every=0 --out=twice --quiet
same_files twice/checkpoints/step-1

# 2. Data: every document is <s> ... </s>.
printf '{"text": "ab"}\n{"text": "c"}\n' >two.jsonl
ids() { # FOLDER: the ids of its train.bin: 256 32-bit words, then 16-bit tokens
    tail -c +1025 "$1/train.bin" | od -An -v -tu2 | xargs
}
ok sifr tokenize two.jsonl --tokenizer=model --split=0 --out=tokens
[ "$(ids tokens)" = "257 97 98 258 257 99 258" ] || fail "documents: $(ids tokens)"
for name in $kept; do cmp -s "model/$name" "tokens/$name" || fail "tokens/$name is not that of the model"; done
ok sifr tokenize two.jsonl --tokenizer=tokens --split=0 --out=tokens-again
cmp -s tokens/train.bin tokens-again/train.bin || fail "the tokenizer of the shards has other special tokens"
ok sifr tokenize two.jsonl --tokenizer=bytes --split=0 --out=plain
[ "$(ids plain)" = "256 97 98 256 99 256" ] || fail "plain documents: $(ids plain)"
# without a template: add_bos_token
make_model with
sed -i "s#\"post_processor\": .*#\"post_processor\": null,#" with/tokenizer.json
printf '{"bos_token": "<s>"}' >with/tokenizer_config.json
ok sifr tokenize two.jsonl --tokenizer=with --split=0 --out=tokens-2
[ "$(ids tokens-2)" = "258 97 98 258 99 258" ] || fail "without bos: $(ids tokens-2)"
printf '{"add_bos_token": true, "bos_token": "<s>", "model_max_length": 1000000000000000019884624838656}' >with/tokenizer_config.json
ok sifr tokenize two.jsonl --tokenizer=with --split=0 --out=tokens-3
[ "$(ids tokens-3)" = "257 97 98 258 257 99 258" ] || fail "with bos: $(ids tokens-3)"
# text trains on the same tokens as the shard of it, and bits per byte do not count <s>
ok sifr train "${fine[@]}" --out=from-text --quiet
ok sifr tokenize text.txt --tokenizer=model --split=0.05 --out=shards
ok sifr train "${fine[@]}" --data.path=shards/train.bin --out=from-shards --quiet
cmp -s from-text/checkpoints/step-2/model.safetensors from-shards/checkpoints/step-2/model.safetensors ||
    fail "text and its shards train differently"

# 3. Prompts: <s> is added once.
sample() { sifr sample "$1" --tokens=6 --temperature=0 --raw -q "$2"; }
ok sample model 'The'
mv out with-bos
ok sample model '<s>The'
cmp -s out with-bos || fail "a prompt that begins with <s> gets a second one"
ok sifr sample model --tokens=3 --temperature=0 --raw -q ''

# 4. Ids that are no added tokens, and files that are not JSON: a warning, then what is left.
make_model odd
sed -i 's/\[258, 259\]/[7, 258]/' odd/config.json
expect 0 'config.json: eos_token_id 7 is not an added token' sifr tokenize two.jsonl --tokenizer=odd --split=0 --out=tokens-4
[ "$(ids tokens-4)" = "257 97 98 258 257 99 258" ] || fail "an id that is no added token: $(ids tokens-4)"
ok sifr train --model.path=odd --data.path=text.txt --train.steps=1 --train.eval_every=0 --out=odd-run --quiet
grep -q '"eos_token_id": \[7, 258\]' odd-run/checkpoints/step-1/config.json || fail "an id that is not used is lost"
printf '{"eos' >odd/generation_config.json
expect 0 'generation_config.json next to tokenizer.json is not valid JSON' sifr tokenize two.jsonl --tokenizer=odd --split=0 --out=tokens-5
finish
