/* inspect_tokens -- token shards, folders of token shards, and tokenizers. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "base/text.h"
#include "cli/inspect/inspect.h"
#include "cli/token_file.h"
#include "train/tokenizer/tokenizer.h"

enum { SHOWN = 16 };

static int64_t token_at(const struct shard *shard, int64_t i)
{
    const uint16_t *narrow = shard_tokens(shard);
    const uint32_t *wide = shard_tokens(shard);
    return shard_token_bytes(shard) == 2 ? narrow[i] : wide[i];
}

static void print_first_tokens(struct inspection *in, const struct shard *shard)
{
    int64_t shown = shard_count(shard) < SHOWN ? shard_count(shard) : SHOWN;
    char line[SHOWN * 12];
    size_t used = 0;
    inspect_open_list(in, "first");
    for (int64_t i = 0; i < shown; i++) {
        if (in->json)
            json_out_int(in->json, NULL, token_at(shard, i));
        else
            used += (size_t)snprintf(line + used, sizeof line - used, "%s%" PRId64, i ? " " : "",
                                     token_at(shard, i));
    }
    inspect_close_list(in);
    if (!in->json)
        inspect_string(in, "first", line);
}

enum status inspect_shard(struct inspection *in, enum shard_format format)
{
    struct shard *shard;
    int64_t largest = 0;
    TRY(token_file_open(in->cli->env, in->path, format, &shard));
    for (int64_t i = 0; i < shard_count(shard); i++)
        largest = token_at(shard, i) > largest ? token_at(shard, i) : largest;
    enum status st = file_map_check(in->cli->env, in->path, shard_tokens(shard));
    if (st != STATUS_OK) {
        shard_close(shard);
        return st;
    }
    inspect_string(in, "kind",
                   format == SHARD_LLMC ? "token shard (llm.c)" : "token shard (bare ids)");
    inspect_int(in, "tokens", shard_count(shard));
    inspect_int(in, "token_bits", 8 * shard_token_bytes(shard));
    inspect_int(in, "largest", largest);
    if (shard_vocab(shard))
        inspect_int(in, "vocab", shard_vocab(shard));
    if (shard_fingerprint(shard)) {
        char fingerprint[32];
        snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, shard_fingerprint(shard));
        inspect_string(in, "tokenizer", fingerprint);
    }
    print_first_tokens(in, shard);
    shard_close(shard);
    return STATUS_OK;
}

/* --- a folder of shards --------------------------------------------------------------------- */

static enum status print_one(struct inspection *in, const char *path)
{
    struct shard *shard;
    char line[128], human[32];
    TRY(token_file_open(in->cli->env, path, SHARD_LLMC, &shard));
    if (in->json) {
        json_out_open(in->json, NULL, '{');
        json_out_string(in->json, "path", path);
        json_out_int(in->json, "tokens", shard_count(shard));
        json_out_int(in->json, "token_bits", 8 * shard_token_bytes(shard));
        json_out_int(in->json, "vocab", shard_vocab(shard));
        json_out_close(in->json, '}');
    } else {
        snprintf(line, sizeof line, "%s tokens of %d bits",
                 text_human_count(human, (double)shard_count(shard)), 8 * shard_token_bytes(shard));
        inspect_string(in, path + strlen(in->path) + (path[strlen(in->path)] == '/'), line);
    }
    shard_close(shard);
    return STATUS_OK;
}

enum status inspect_shards(struct inspection *in)
{
    struct env *env = in->cli->env;
    struct path_list list;
    char *pattern;
    TRY(path_join(env, in->path, "*.bin", &pattern));
    enum status st = path_glob(env, pattern, &list);
    mem_free(env, pattern);
    TRY(st);
    inspect_string(in, "kind", "folder of token shards; `sifr inspect FILE` shows one");
    inspect_open_list(in, "shards");
    for (int i = 0; i < list.count && st == STATUS_OK; i++)
        st = print_one(in, list.paths[i]);
    inspect_close_list(in);
    path_list_free(env, &list);
    return st;
}

enum status inspect_tokenizer(struct inspection *in)
{
    struct tokenizer *tokenizer;
    struct text text;
    TRY(tokenizer_load(in->cli->env, in->path, &tokenizer));
    int vocab = tokenizer_vocab(tokenizer), eot = tokenizer_eot(tokenizer);
    size_t bytes, longest = 0, all = 0;
    int32_t longest_id = 0;
    for (int32_t id = 0; id < vocab; id++) {
        if (!tokenizer_token(tokenizer, id, &bytes))
            continue;
        all += bytes;
        if (id != eot && bytes > longest) {
            longest = bytes;
            longest_id = id;
        }
    }
    inspect_string(in, "kind",
                   tokenizer_is_byte_level(tokenizer) ? "tokenizer (byte-level BPE)"
                                                      : "tokenizer (BPE over characters)");
    inspect_int(in, "vocab", vocab);
    inspect_int(in, "end_of_text", eot);
    inspect_real(in, "mean_bytes", (double)all / vocab);
    /* Quoted, so that newlines and control characters are visible. */
    const void *token = tokenizer_token(tokenizer, longest_id, &bytes);
    text_init(&text, in->cli->env);
    text_json_string(&text, token, bytes);
    if (in->json)
        json_out_bytes(in->json, "longest", token, bytes);
    else
        inspect_string(in, "longest", text_string(&text));
    enum status st = text.status;
    text_free(&text);
    tokenizer_destroy(tokenizer);
    return st;
}
