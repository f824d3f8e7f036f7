/* tokenizer_json -- parses a Hugging Face tokenizer.json that describes BPE: its vocabulary, added
 * tokens and merges. tokenizer_json_steps.c reads what is done before and after.
 *
 * BPE is byte-level if the pre_tokenizer ends with ByteLevel. Spellings in the byte alphabet are
 * then converted to raw bytes here, once. A token that is not spelled in it (such as a special
 * token in the vocabulary), the content of an added token, and every token of BPE over characters
 * are used verbatim. What is not supported is refused by name: an almost correct encoding is worse
 * than none. truncation and padding are ignored.
 *
 * Parsing guarantees that no two tokens share an id, and that the bytes of a merge's result are
 * those of its two parts, concatenated. Round trips depend on both.
 */
#include "base/named.h"
#include "train/tokenizer/tokenizer_json_impl.h"

/* --- vocabulary ----------------------------------------------------------------------------- */

/* Convert a spelling in the byte alphabet to bytes; false if it uses other characters. */
static bool spelt_bytes(const char *spelling, size_t length, uint8_t *bytes, size_t *count)
{
    *count = 0;
    for (size_t i = 0; i < length; i++) {
        int code = (uint8_t)spelling[i], byte;
        if (code >= 0xc0 && code < 0xe0) /* jansson has checked that it is UTF-8 */
            code = (code & 0x1f) << 6 | ((uint8_t)spelling[++i] & 0x3f);
        else if (code >= 0x80)
            return false;
        if ((byte = alphabet_byte(code)) < 0)
            return false;
        bytes[(*count)++] = (uint8_t)byte;
    }
    return true;
}

/* Allocate the vocabulary. Ids may have holes, but the largest id is limited by the number of
 * tokens, so that a small file cannot make us allocate a huge table. */
static enum status size_vocab(struct reader *r)
{
    const char *spelling;
    json_t *id;
    size_t i, bytes = 0, entries = json_object_size(r->vocab) + json_array_size(r->added);
    json_int_t largest = -1, limit = (json_int_t)entries * 4 + 65536;
    json_object_foreach(r->vocab, spelling, id)
    {
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > limit)
            return MALFORMED(r, "token '%s' has an id that is not a number in 0 .. %lld", spelling,
                             (long long)limit);
        largest = json_integer_value(id) > largest ? json_integer_value(id) : largest;
        bytes += strlen(spelling);
    }
    json_array_foreach(r->added, i, id)
    {
        const json_t *number = json_object_get(id, "id"), *content = json_object_get(id, "content");
        if (!json_is_integer(number) || json_integer_value(number) < 0 ||
            json_integer_value(number) > limit || !json_is_string(content))
            return MALFORMED(r, "added token %zu needs a content and an id in 0 .. %lld", i,
                             (long long)limit);
        largest = json_integer_value(number) > largest ? json_integer_value(number) : largest;
        bytes += json_string_length(content);
    }
    struct vocab *vocab = &r->tokenizer->vocab;
    vocab->count = (int)(largest + 1);
    TRY(mem_alloc_array(r->env, MEM_LOADER, "tokenizer vocabulary", (size_t)vocab->count,
                        sizeof *vocab->tokens, &vocab->tokens));
    return mem_alloc(r->env, MEM_LOADER, "tokenizer vocabulary", bytes, &vocab->blob);
}

static void set_token(struct reader *r, struct token *token, size_t bytes, uint32_t flags)
{
    *token = (struct token){(uint32_t)r->blob_bytes, (uint32_t)bytes, flags};
    r->blob_bytes += bytes;
}

static enum status read_vocab(struct reader *r)
{
    const char *spelling;
    json_t *id;
    json_object_foreach(r->vocab, spelling, id)
    {
        struct token *token = &r->tokenizer->vocab.tokens[json_integer_value(id)];
        uint8_t *bytes = r->tokenizer->vocab.blob + r->blob_bytes;
        size_t length = strlen(spelling), count;
        if (token->flags)
            return MALFORMED(r, "token '%s' has id %lld, which another token also has", spelling,
                             (long long)json_integer_value(id));
        if (r->byte_level && spelt_bytes(spelling, length, bytes, &count)) {
            set_token(r, token, count, TOKEN_USED | TOKEN_WORD);
        } else {
            memcpy(bytes, spelling, length);
            set_token(r, token, length, TOKEN_USED | (r->byte_level ? 0 : TOKEN_WORD));
        }
    }
    return STATUS_OK;
}

/* --- added tokens --------------------------------------------------------------------------- */

/* Set the bytes of an added token. A vocabulary entry with the same spelling is the same token. */
static enum status set_added_content(struct reader *r, int32_t id, const char *content,
                                     size_t bytes, bool special)
{
    struct vocab *vocab = &r->tokenizer->vocab;
    struct token *token = &vocab->tokens[id];
    const json_t *known = json_object_get(r->vocab, content);
    bool consistent = known ? json_integer_value(known) == id
                            : !token->flags || token_is(vocab, token, content, bytes);
    if (!consistent)
        return MALFORMED(r,
                         "added token '%s' has id %d, but that id belongs to another token, or "
                         "model.vocab gives '%s' another id",
                         content, id, content);
    if (!token_is(vocab, token, content, bytes)) {
        memcpy(vocab->blob + r->blob_bytes, content, bytes);
        set_token(r, token, bytes, TOKEN_USED);
    }
    token->flags |= TOKEN_USED | (special ? TOKEN_SPECIAL : 0);
    return STATUS_OK;
}

/* A token that is matched in normalized text is normalized, too. */
static enum status add_content(struct reader *r, struct added_set *set, struct added added,
                               const json_t *content, bool normalized)
{
    const uint8_t *text = (const uint8_t *)json_string_value(content);
    size_t bytes = json_string_length(content);
    if (normalized)
        TRY(normalizer_run(r->normalizing, &text, &bytes));
    if (!bytes)
        return STATUS_OK;
    added.at = (uint32_t)set->contents.bytes;
    added.bytes = (uint32_t)bytes;
    text_add_bytes(&set->contents, text, bytes);
    set->list[set->count++] = added;
    return set->contents.status;
}

static enum status read_added_token(struct reader *r, const json_t *entry, struct added_set sets[2])
{
    const json_t *content = json_object_get(entry, "content");
    struct added added = {.id = (int32_t)json_integer_value(json_object_get(entry, "id"))};
    bool single_word, normalized;
    if (!json_string_length(content)) /* matches nothing */
        return STATUS_OK;
    TRY(read_bool(r, entry, "special", false, &added.special));
    TRY(read_bool(r, entry, "lstrip", false, &added.lstrip));
    TRY(read_bool(r, entry, "rstrip", false, &added.rstrip));
    TRY(read_bool(r, entry, "single_word", false, &single_word));
    TRY(read_bool(r, entry, "normalized", !added.special, &normalized));
    if (single_word)
        return REFUSED(r, "added token '%s' has single_word, which is not supported",
                       json_string_value(content));
    TRY(set_added_content(r, added.id, json_string_value(content), json_string_length(content),
                          added.special));
    return add_content(r, &sets[normalized], added, content, normalized);
}

static enum status read_added(struct reader *r)
{
    struct added_set *sets = r->tokenizer->added;
    size_t i, count = json_array_size(r->added);
    json_t *entry;
    enum status st = STATUS_OK;
    for (int pass = 0; pass < 2; pass++)
        TRY(mem_alloc_array(r->env, MEM_LOADER, "tokenizer added tokens", count,
                            sizeof *sets[pass].list, &sets[pass].list));
    TRY(normalizer_work_create(r->env, r->tokenizer->normalizer, &r->normalizing));
    json_array_foreach(r->added, i, entry)
    {
        if (st == STATUS_OK)
            st = read_added_token(r, entry, sets);
    }
    normalizer_work_destroy(r->normalizing);
    for (int pass = 0; pass < 2 && st == STATUS_OK; pass++)
        added_set_finish(&sets[pass]);
    return st;
}

/* The end-of-text token, by the names in common use. */
static int find_eot(const struct reader *r)
{
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>",
                                        "<|eot_id|>",    "<|im_end|>",      "[EOS]"};
    size_t i;
    json_t *entry;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        json_array_foreach(r->added, i, entry)
        {
            if (strcmp(json_string_value(json_object_get(entry, "content")), names[n]) == 0)
                return (int)json_integer_value(json_object_get(entry, "id"));
        }
    return -1;
}

/* --- merges --------------------------------------------------------------------------------- */

struct spelling {
    const char *data;
    size_t bytes;
};

/* A merge is either "left right" or ["left", "right"]. */
static bool split_merge(const json_t *entry, struct spelling part[2])
{
    if (json_is_string(entry)) {
        const char *line = json_string_value(entry), *space = strchr(line, ' ');
        if (!space || strchr(space + 1, ' '))
            return false;
        part[0] = (struct spelling){line, (size_t)(space - line)};
        part[1] = (struct spelling){space + 1, strlen(space + 1)};
        return true;
    }
    for (int i = 0; i < 2; i++) {
        const json_t *string = json_array_get(entry, (size_t)i);
        part[i] = (struct spelling){json_string_value(string), json_string_length(string)};
    }
    return json_array_size(entry) == 2 && part[0].data && part[1].data;
}

static bool find_token(const struct reader *r, const char *spelling, size_t bytes, int32_t *id)
{
    const json_t *found = json_object_getn(r->vocab, spelling, bytes);
    *id = (int32_t)json_integer_value(found);
    return found != NULL;
}

static bool result_is_concatenation(const struct vocab *vocab, const struct merge *merge)
{
    const struct token *left = &vocab->tokens[merge->left], *right = &vocab->tokens[merge->right];
    const struct token *result = &vocab->tokens[merge->result];
    const uint8_t *bytes = vocab->blob + result->at;
    return result->bytes == left->bytes + right->bytes &&
           memcmp(bytes, vocab->blob + left->at, left->bytes) == 0 &&
           memcmp(bytes + left->bytes, vocab->blob + right->at, right->bytes) == 0;
}

static enum status read_merge(struct reader *r, size_t number, const json_t *entry,
                              struct merge *merge)
{
    struct spelling part[2];
    if (!split_merge(entry, part))
        return MALFORMED(r, "merge %zu is neither \"left right\" nor [\"left\", \"right\"]",
                         number);
    text_clear(&r->spelling);
    text_add_bytes(&r->spelling, part[0].data, part[0].bytes);
    text_add_bytes(&r->spelling, part[1].data, part[1].bytes);
    TRY(r->spelling.status);
    if (!find_token(r, part[0].data, part[0].bytes, &merge->left) ||
        !find_token(r, part[1].data, part[1].bytes, &merge->right) ||
        !find_token(r, text_string(&r->spelling), r->spelling.bytes, &merge->result))
        return MALFORMED(r, "merge %zu: '%.*s', '%.*s' or their result is not in model.vocab",
                         number, (int)part[0].bytes, part[0].data, (int)part[1].bytes,
                         part[1].data);
    if (!part[0].bytes || !part[1].bytes || !result_is_concatenation(&r->tokenizer->vocab, merge))
        return MALFORMED(r, "merge %zu: the bytes of '%s' are not those of its parts", number,
                         text_string(&r->spelling));
    return STATUS_OK;
}

/* Where no merge joins a marker to text before it, BPE over characters may be done in parts that
 * start with markers, unless characters are dropped, which makes others neighbours. Sections are
 * often not split otherwise: parts can be cached, and need little memory. */
static enum status cut_at_markers(struct reader *r, const struct bpe_rules *rules,
                                  const struct merge *merges, size_t count)
{
    static const char cut[] = MARKER "*[^" MARKER "]+|" MARKER "+";
    const struct vocab *vocab = &r->tokenizer->vocab;
    const size_t length = strlen(MARKER);
    if (rules->byte_level || rules->whole_words || rules->unknown < 0 ||
        !json_object_get(r->vocab, MARKER))
        return STATUS_OK;
    for (size_t i = 0; i < count; i++) {
        const struct token *left = &vocab->tokens[merges[i].left];
        const struct token *right = &vocab->tokens[merges[i].right];
        const uint8_t *end = vocab->blob + left->at + left->bytes;
        if (right->bytes >= length && !memcmp(vocab->blob + right->at, MARKER, length) &&
            (left->bytes < length || memcmp(end - length, MARKER, length) != 0))
            return STATUS_OK;
    }
    return splitter_add(r->tokenizer->splitter, cut, strlen(cut), SPLIT_ISOLATED, false, r->origin);
}

static enum status read_rules(struct reader *r, const json_t *model, struct bpe_rules *rules)
{
    const json_t *unknown = json_object_get(model, "unk_token");
    *rules = (struct bpe_rules){.byte_level = r->byte_level, .unknown = -1};
    TRY(read_bool(r, model, "ignore_merges", false, &rules->whole_words));
    TRY(read_bool(r, model, "fuse_unk", false, &rules->fuse_unknown));
    TRY(read_bool(r, model, "byte_fallback", false, &rules->byte_fallback));
    if (r->byte_level && rules->byte_fallback)
        return REFUSED(r, "model.%s with the pre_tokenizer ByteLevel is not supported",
                       "byte_fallback");
    if (r->byte_level || !json_string_length(unknown))
        return STATUS_OK;
    if (!find_token(r, json_string_value(unknown), json_string_length(unknown), &rules->unknown))
        return MALFORMED(r, "model.unk_token '%s' is not in model.vocab",
                         json_string_value(unknown));
    return STATUS_OK;
}

static enum status read_merges(struct reader *r, const json_t *model)
{
    json_t *list = json_object_get(model, "merges");
    struct merge *merges;
    json_t *entry;
    size_t i, count = 0;
    struct bpe_rules rules;
    enum status st;
    if (!json_is_array(list))
        return MALFORMED(r, "model.%s is missing", "merges");
    TRY(read_rules(r, model, &rules));
    TRY(mem_alloc_array(r->env, MEM_LOADER, "tokenizer merges", json_array_size(list),
                        sizeof *merges, &merges));
    json_array_foreach(list, i, entry)
    {
        if (json_is_string(entry) && strncmp(json_string_value(entry), "#version", 8) == 0)
            continue; /* a line of the old merges.txt */
        TRY_OR(done, read_merge(r, i, entry, &merges[count]));
        count++;
    }
    TRY_OR(done, cut_at_markers(r, &rules, merges, count));
    st = bpe_create(r->env, &r->tokenizer->vocab, merges, (int64_t)count, &rules,
                    &r->tokenizer->bpe);
done:
    mem_free(r->env, merges);
    return st;
}

/* --- the file ------------------------------------------------------------------------------- */

static bool is_empty(const json_t *value) /* absent, null, false, 0 or "" */
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_number(value) && json_number_value(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0);
}

static enum status read_model(struct reader *r, const json_t *root)
{
    static const char *const unsupported[] = {"dropout", "continuing_subword_prefix",
                                              "end_of_word_suffix"};
    const json_t *model = json_object_get(root, "model");
    if (!is_type(model, "BPE"))
        return REFUSED(r, "model '%s' is not supported, only BPE is", type_of(model));
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++)
        if (!is_empty(json_object_get(model, unsupported[i])))
            return REFUSED(r, "model.%s is not supported", unsupported[i]);
    r->vocab = json_object_get(model, "vocab");
    r->added = json_object_get(root, "added_tokens");
    if (!json_is_object(r->vocab))
        return MALFORMED(r, "model.%s is missing", "vocab");
    TRY(size_vocab(r));
    TRY(read_vocab(r));
    TRY(read_added(r));
    r->tokenizer->eot = find_eot(r);
    return read_merges(r, model);
}

static enum status read_root(struct reader *r, const json_t *root)
{
    const char *version = json_string_value(json_object_get(root, "version"));
    if (!version && !json_object_get(root, "model"))
        return MALFORMED(r, "not a tokenizer.json: it has no %s",
                         json_object_get(root, "model_type")
                             ? "\"model\" but a \"model_type\", as a model's config.json; a model "
                               "is named by its folder"
                             : "\"model\"");
    if (!version && !is_type(json_object_get(root, "model"), "BPE"))
        return read_model(r, root); /* fails with the model's type */
    if (!version || strcmp(version, "1.0") != 0)
        return MALFORMED(r, "not a tokenizer.json: version is '%s' instead of '1.0'",
                         version ? version : "");
    TRY(normalizer_create(r->env, &r->tokenizer->normalizer));
    TRY(splitter_create(r->env, &r->tokenizer->splitter));
    TRY(read_normalizer(r, json_object_get(root, "normalizer")));
    TRY(read_pre_tokenizer(r, json_object_get(root, "pre_tokenizer")));
    r->tokenizer->byte_level = r->byte_level;
    TRY(read_model(r, root));
    TRY(read_post_processor(r, json_object_get(root, "post_processor")));
    special_init(r->tokenizer);
    TRY(read_decoder(r, json_object_get(root, "decoder")));
    return splitter_finish(r->tokenizer->splitter, r->origin);
}

static enum status read_source(struct reader *r)
{
    /* A merge may be a list of two. The limits are four times 256k tokens with 500k merges. */
    static const struct json_rules rules = {
        .values = 8000000, .lists = 2000000, .flags = JSON_REJECT_DUPLICATES};
    struct json_doc doc;
    const struct tokenizer *t = r->tokenizer;
    enum status st = json_doc_open(r->env, t->source, t->source_bytes, &rules, &doc);
    const char *mistaken =
        st == STATUS_FORMAT && !doc.too_large ? mistaken_for(t->source, t->source_bytes) : NULL;
    if (mistaken)
        return MALFORMED(r, "not a tokenizer.json: %s", mistaken);
    if (st == STATUS_FORMAT)
        return MALFORMED(r, "not a tokenizer.json: line %d, column %d: %s", doc.error.line,
                         doc.error.column, doc.error.text);
    TRY(st);
    st = read_root(r, doc.root);
    json_doc_close(&doc);
    return st;
}

enum status tokenizer_parse(struct env *env, const char *json, size_t bytes, const char *origin,
                            struct tokenizer **tokenizer)
{
    struct tokenizer *t;
    struct reader reader = {.env = env, .origin = origin};
    enum status st;
    if (bytes > TOKENIZER_FILE_LIMIT)
        return MALFORMED(&reader, "more than %zu MiB", TOKENIZER_FILE_LIMIT >> 20);
    TRY(mem_alloc(env, MEM_LOADER, "tokenizer", sizeof *t, &t));
    t->env = env;
    for (int i = 0; i < 2; i++)
        text_init(&t->added[i].contents, env);
    reader.tokenizer = t;
    text_init(&reader.spelling, env);
    TRY_OR(undo, mem_alloc(env, MEM_LOADER, "tokenizer source", bytes + 1, &t->source));
    memcpy(t->source, json, bytes);
    t->source_bytes = bytes;
    TRY_OR(undo, read_source(&reader));
    text_free(&reader.spelling);
    *tokenizer = t;
    return STATUS_OK;
undo:
    text_free(&reader.spelling);
    tokenizer_destroy(t);
    return st;
}
