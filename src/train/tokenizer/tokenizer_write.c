/* tokenizer_write -- writes the tokenizer.json of plain bytes or of a learnt vocabulary.
 *
 * Ids 0..255 are the bytes in the given order, then come the results of the merges, then
 * <|endoftext|>. The text is what Hugging Face `tokenizers` would write for this vocabulary;
 * tokenizer_parse turns it into the tokenizer.
 */
#include "train/tokenizer/tokenizer_impl.h"

#define EOT "<|endoftext|>"

struct spellings {
    struct text text; /* of all ids, concatenated */
    size_t *start;    /* [count + 1] */
};

/* Copy the spelling of an id to `scratch`: s->text may move while it grows. */
static void add_part(struct spellings *s, int32_t id, struct text *scratch)
{
    text_add_bytes(scratch, s->text.data + s->start[id], s->start[id + 1] - s->start[id]);
}

static enum status spell_all(struct spellings *s, const uint8_t order[256],
                             const struct merge *merges, int merge_count, struct text *scratch)
{
    for (int id = 0; id < 256; id++) {
        int code = alphabet_code(order[id]);
        char utf8[2] = {(char)(0xc0 | code >> 6), (char)(0x80 | (code & 0x3f))};
        char ascii = (char)code;
        text_add_bytes(&s->text, code < 0x80 ? &ascii : utf8, code < 0x80 ? 1 : 2);
        s->start[id + 1] = s->text.bytes;
    }
    TRY(s->text.status);
    for (int i = 0; i < merge_count; i++) {
        text_clear(scratch);
        add_part(s, merges[i].left, scratch);
        add_part(s, merges[i].right, scratch);
        text_add_bytes(&s->text, text_string(scratch), scratch->bytes);
        TRY(scratch->status);
        TRY(s->text.status);
        s->start[256 + i + 1] = s->text.bytes;
    }
    return STATUS_OK;
}

static void write_spelling(struct text *out, const struct spellings *s, int32_t id)
{
    text_json_string(out, s->text.data + s->start[id], s->start[id + 1] - s->start[id]);
}

static void write_head(struct text *out, int eot, bool split)
{
    text_printf(out,
                "{\n"
                "  \"version\": \"1.0\",\n"
                "  \"truncation\": null,\n"
                "  \"padding\": null,\n"
                "  \"added_tokens\": [\n"
                "    {\"id\": %d, \"content\": \"" EOT "\", \"single_word\": false, "
                "\"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}\n"
                "  ],\n"
                "  \"normalizer\": null,\n"
                "  \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                "\"trim_offsets\": true, \"use_regex\": %s},\n"
                "  \"post_processor\": null,\n"
                "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                "\"trim_offsets\": true, \"use_regex\": %s},\n",
                eot, split ? "true" : "false", split ? "true" : "false");
}

static void write_model(struct text *out, const struct spellings *s, const struct merge *merges,
                        int merge_count)
{
    text_add(out, "  \"model\": {\n"
                  "    \"type\": \"BPE\",\n"
                  "    \"dropout\": null,\n"
                  "    \"unk_token\": null,\n"
                  "    \"continuing_subword_prefix\": null,\n"
                  "    \"end_of_word_suffix\": null,\n"
                  "    \"fuse_unk\": false,\n"
                  "    \"byte_fallback\": false,\n"
                  "    \"ignore_merges\": false,\n"
                  "    \"vocab\": {\n");
    for (int id = 0; id < 256 + merge_count; id++) {
        text_add(out, "      ");
        write_spelling(out, s, id);
        text_printf(out, ": %d,\n", id);
    }
    text_printf(out, "      \"" EOT "\": %d\n    },\n    \"merges\": [", 256 + merge_count);
    for (int i = 0; i < merge_count; i++) {
        text_add(out, i ? ",\n      [" : "\n      [");
        write_spelling(out, s, merges[i].left);
        text_add(out, ", ");
        write_spelling(out, s, merges[i].right);
        text_add(out, "]");
    }
    text_add(out, merge_count ? "\n    ]\n  }\n}\n" : "]\n  }\n}\n");
}

enum status tokenizer_build(struct env *env, const uint8_t order[256], const struct merge *merges,
                            int merge_count, const char *origin, struct tokenizer **tokenizer)
{
    struct spellings spellings = {0};
    struct text json, scratch;
    enum status st;
    text_init(&spellings.text, env);
    text_init(&json, env);
    text_init(&scratch, env);
    TRY_OR(done,
           mem_alloc_array(env, MEM_LOADER, "tokenizer spellings", 256 + (size_t)merge_count + 1,
                           sizeof *spellings.start, &spellings.start));
    TRY_OR(done, spell_all(&spellings, order, merges, merge_count, &scratch));
    write_head(&json, 256 + merge_count, merge_count > 0);
    write_model(&json, &spellings, merges, merge_count);
    TRY_OR(done, json.status);
    st = tokenizer_parse(env, json.data, json.bytes, origin, tokenizer);
done:
    text_free(&scratch);
    text_free(&json);
    text_free(&spellings.text);
    mem_free(env, spellings.start);
    return st;
}
