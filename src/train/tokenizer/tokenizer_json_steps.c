/* tokenizer_json_steps -- reads what a tokenizer.json does around BPE: normalizer, pre_tokenizer,
 * post_processor and decoder. Each is one step or a Sequence of them. */
#include "train/tokenizer/tokenizer_json_impl.h"

/* --- JSON values ---------------------------------------------------------------------------- */

const char *type_of(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "without a type";
}

bool is_type(const json_t *object, const char *type)
{
    return strcmp(type_of(object), type) == 0;
}

enum status read_bool(struct reader *r, const json_t *object, const char *key, bool fallback,
                      bool *value)
{
    const json_t *found = json_object_get(object, key);
    *value = json_is_boolean(found) ? json_is_true(found) : fallback;
    if (found && !json_is_null(found) && !json_is_boolean(found))
        return MALFORMED(r, "'%s' must be true or false", key);
    return STATUS_OK;
}

static bool is_null(const json_t *value)
{
    return !value || json_is_null(value);
}

/* Call `each` for a step, or for every step of a Sequence, whose list is `key`. */
typedef enum status step_fn(struct reader *r, const json_t *step);
static enum status read_steps(struct reader *r, const json_t *step, const char *key, step_fn *each)
{
    if (!is_type(step, "Sequence"))
        return each(r, step);
    const json_t *list = json_object_get(step, key);
    size_t count = json_array_size(list);
    if (!json_is_array(list))
        return MALFORMED(r, "a Sequence has no list '%s'", key);
    for (size_t i = 0; i < count; i++) {
        if (is_type(json_array_get(list, i), "Sequence"))
            return REFUSED(r, "a Sequence in a Sequence ('%s') is not supported; write one list",
                           key);
        TRY(each(r, json_array_get(list, i)));
    }
    return STATUS_OK;
}

/* A key that holds one character, as in Metaspace and Strip. */
static enum status read_character(struct reader *r, const json_t *step, const char *key,
                                  char out[5])
{
    const json_t *value = json_object_get(step, key);
    size_t bytes = json_string_length(value);
    uint32_t code;
    if (!bytes || utf8_read((const uint8_t *)json_string_value(value), bytes, &code) != bytes)
        return MALFORMED(r, "%s: '%s' must be one character", type_of(step), key);
    memcpy(out, json_string_value(value), bytes + 1);
    return STATUS_OK;
}

/* {"String": "..."}, for a step that replaces it. */
static enum status add_replace(struct reader *r, const json_t *step, struct normalizer *to)
{
    const json_t *pattern = json_object_get(json_object_get(step, "pattern"), "String");
    const json_t *content = json_object_get(step, "content");
    if (!json_string_length(pattern))
        return REFUSED(r, "%s of another pattern than a String is not supported", "Replace");
    if (!json_is_string(content))
        return MALFORMED(r, "%s has no content", "Replace");
    return normalizer_add_text(to, NORMALIZER_REPLACE, json_string_value(pattern),
                               json_string_length(pattern), json_string_value(content),
                               json_string_length(content), r->origin);
}

/* --- normalizer ----------------------------------------------------------------------------- */

static enum status read_normalizer_step(struct reader *r, const json_t *step)
{
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"}; /* as enum unicode_form */
    struct normalizer *n = r->tokenizer->normalizer;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (is_type(step, forms[i]))
            return normalizer_add_form(n, (enum unicode_form)i, r->origin);
    if (is_type(step, "Lowercase"))
        return normalizer_add_lowercase(n, r->origin);
    if (is_type(step, "Replace"))
        return add_replace(r, step, n);
    const json_t *prefix = json_object_get(step, "prepend");
    if (is_type(step, "Prepend") && json_is_string(prefix))
        return normalizer_add_text(n, NORMALIZER_PREPEND, "", 0, json_string_value(prefix),
                                   json_string_length(prefix), r->origin);
    return REFUSED(r,
                   "normalizer '%s' is not supported; NFC, NFD, NFKC, NFKD, Lowercase, Prepend, "
                   "Replace and Sequence are",
                   type_of(step));
}

enum status read_normalizer(struct reader *r, const json_t *normalizer)
{
    return is_null(normalizer) ? STATUS_OK
                               : read_steps(r, normalizer, "normalizers", read_normalizer_step);
}

/* --- pre_tokenizer -------------------------------------------------------------------------- */

static enum status add_split(struct reader *r, const char *regex, size_t bytes,
                             enum split_behavior behavior, bool invert)
{
    return splitter_add(r->tokenizer->splitter, regex, bytes, behavior, invert, r->origin);
}

static enum status read_byte_level(struct reader *r, const json_t *step)
{
    struct sectioning *rule = &r->tokenizer->sectioning;
    bool use_regex, prefix;
    TRY(read_bool(r, step, "use_regex", true, &use_regex));
    TRY(read_bool(r, step, "add_prefix_space", true, &prefix));
    if (prefix && r->steps)
        return REFUSED(r, "%s of a ByteLevel after other pre_tokenizers is not supported",
                       "add_prefix_space");
    r->byte_level = true;
    if (prefix)
        *rule = (struct sectioning){.scheme = PREFIX_ALWAYS, .marker = " "};
    return use_regex ? add_split(r, SPLIT_GPT2, strlen(SPLIT_GPT2), SPLIT_ISOLATED, false)
                     : STATUS_OK;
}

static enum status read_behavior(struct reader *r, const json_t *step, const char *fallback,
                                 enum split_behavior *behavior)
{
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                        "MergedWithNext"}; /* as enum split_behavior */
    const char *name = json_string_value(json_object_get(step, "behavior"));
    name = name ? name : fallback;
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0) {
            *behavior = (enum split_behavior)i;
            return STATUS_OK;
        }
    return REFUSED(r,
                   "the pre_tokenizer's %s has behavior '%s'; Isolated, Removed, Contiguous, "
                   "MergedWithPrevious and MergedWithNext are supported",
                   type_of(step), name ? name : "");
}

static enum status read_split(struct reader *r, const json_t *step)
{
    const json_t *pattern = json_object_get(step, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *string = json_object_get(pattern, "String");
    enum split_behavior behavior;
    bool invert;
    TRY(read_bool(r, step, "invert", false, &invert));
    TRY(read_behavior(r, step, NULL, &behavior));
    if (json_is_string(regex))
        return add_split(r, json_string_value(regex), json_string_length(regex), behavior, invert);
    if (!json_string_length(string))
        return REFUSED(r, "the pre_tokenizer's Split has no %s; other patterns are not supported",
                       "Regex and no String");
    text_clear(&r->spelling);
    for (const char *c = json_string_value(string); *c; c++) {
        if (strchr("\\^$.|?*+()[]{}", *c))
            text_add(&r->spelling, "\\");
        text_add_bytes(&r->spelling, c, 1);
    }
    TRY(r->spelling.status);
    return add_split(r, text_string(&r->spelling), r->spelling.bytes, behavior, invert);
}

static enum status read_digits(struct reader *r, const json_t *step)
{
    static const char regex[] = "\\p{" SPLIT_DIGITS "}";
    bool individual;
    TRY(read_bool(r, step, "individual_digits", false, &individual));
    return add_split(r, regex, strlen(regex), individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS,
                     false);
}

static enum status read_punctuation(struct reader *r, const json_t *step)
{
    static const char regex[] = "\\p{" SPLIT_PUNCTUATION "}";
    enum split_behavior behavior;
    TRY(read_behavior(r, step, "Isolated", &behavior));
    return add_split(r, regex, strlen(regex), behavior, false);
}

static enum status read_metaspace(struct reader *r, const json_t *step)
{
    static const char *const schemes[] = {"never", "first", "always"}; /* as enum prefix_scheme */
    const char *scheme = json_string_value(json_object_get(step, "prepend_scheme"));
    struct sectioning *rule = &r->tokenizer->sectioning;
    bool old_prefix, splits, known = false;
    if (r->steps)
        return REFUSED(r, "pre_tokenizer '%s' after others in a Sequence is not supported",
                       "Metaspace");
    TRY(read_character(r, step, "replacement", rule->marker));
    TRY(read_bool(r, step, "add_prefix_space", true, &old_prefix)); /* before prepend_scheme */
    TRY(read_bool(r, step, "split", true, &splits));
    scheme = scheme ? scheme : old_prefix ? "always" : "never";
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (strcmp(scheme, schemes[i]) == 0) {
            rule->scheme = (enum prefix_scheme)i;
            known = true;
        }
    if (!known)
        return REFUSED(
            r, "Metaspace has prepend_scheme '%s'; always, first and never are supported", scheme);
    rule->replaces_spaces = true;
    if (!splits)
        return STATUS_OK;
    text_clear(&r->spelling);
    text_printf(&r->spelling, "[%s]", rule->marker);
    TRY(r->spelling.status);
    return add_split(r, text_string(&r->spelling), r->spelling.bytes, SPLIT_WITH_NEXT, false);
}

static enum status read_pre_step(struct reader *r, const json_t *step)
{
    static const struct {
        const char *type;
        step_fn *read;
    } steps[] = {{"ByteLevel", read_byte_level},
                 {"Split", read_split},
                 {"Digits", read_digits},
                 {"Punctuation", read_punctuation},
                 {"Metaspace", read_metaspace}};
    if (r->byte_level)
        return REFUSED(r,
                       "pre_tokenizer '%s' after ByteLevel in a Sequence is not supported; "
                       "ByteLevel must be the last",
                       type_of(step));
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (is_type(step, steps[i].type)) {
            TRY(steps[i].read(r, step));
            r->steps++;
            return STATUS_OK;
        }
    return REFUSED(r,
                   "pre_tokenizer '%s' is not supported; ByteLevel, Split, Digits, Punctuation, "
                   "Metaspace and Sequence are",
                   type_of(step));
}

enum status read_pre_tokenizer(struct reader *r, const json_t *pre)
{
    return is_null(pre) ? STATUS_OK : read_steps(r, pre, "pretokenizers", read_pre_step);
}

/* --- post_processor: the ids around a text -------------------------------------------------- */

static enum status template_add(struct reader *r, bool end, size_t at, const json_t *id)
{
    struct token_list *list = &r->tokenizer->template[end];
    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= r->tokenizer->vocab.count)
        return MALFORMED(r, "the post_processor adds %s that is not in the vocabulary", "an id");
    TRY(token_list_reserve(r->env, list, 1));
    memmove(list->ids + at + 1, list->ids + at, ((size_t)list->count - at) * sizeof *list->ids);
    list->ids[at] = (int32_t)json_integer_value(id);
    list->count++;
    return STATUS_OK;
}

/* "single": special tokens, the text ("A") once, special tokens. Of several templates the later one
 * goes around the earlier ones. */
static enum status read_template(struct reader *r, const json_t *step)
{
    const json_t *single = json_object_get(step, "single"), *part;
    const json_t *tokens = json_object_get(step, "special_tokens"), *id;
    size_t i, n, front = 0;
    bool end = false;
    json_array_foreach(single, i, part)
    {
        const json_t *token = json_object_get(part, "SpecialToken");
        const char *name = json_string_value(json_object_get(token, "id"));
        const json_t *ids = name ? json_object_get(json_object_get(tokens, name), "ids") : NULL;
        if (json_object_get(part, "Sequence") && !end) {
            end = true;
            continue;
        }
        if (!json_is_array(ids))
            return MALFORMED(r,
                             "the post_processor's TemplateProcessing: item %zu is neither a "
                             "known special token nor the text",
                             i + 1);
        json_array_foreach(ids, n, id)
        {
            TRY(template_add(r, end, end ? (size_t)r->tokenizer->template[1].count : front++, id));
        }
    }
    return end ? STATUS_OK : MALFORMED(r, "the post_processor's %s has no text", type_of(step));
}

static enum status read_post_step(struct reader *r, const json_t *step)
{
    if (is_type(step, "ByteLevel")) /* moves offsets only */
        return STATUS_OK;
    if (is_type(step, "TemplateProcessing"))
        return read_template(r, step);
    if (is_type(step, "RobertaProcessing") || is_type(step, "BertProcessing")) {
        size_t end = (size_t)r->tokenizer->template[1].count;
        TRY(template_add(r, false, 0, json_array_get(json_object_get(step, "cls"), 1)));
        return template_add(r, true, end, json_array_get(json_object_get(step, "sep"), 1));
    }
    return REFUSED(r,
                   "post_processor '%s' is not supported; ByteLevel, TemplateProcessing, "
                   "RobertaProcessing, BertProcessing and Sequence are",
                   type_of(step));
}

enum status read_post_processor(struct reader *r, const json_t *post)
{
    return is_null(post) ? STATUS_OK : read_steps(r, post, "processors", read_post_step);
}

/* --- decoder of BPE over characters --------------------------------------------------------- */

/* The steps up to Fuse change single tokens. They are applied to the vocabulary, once. */
struct decoder_steps {
    struct normalizer *replaces;
    bool byte_fallback, fused;
};

static enum status read_count(struct reader *r, const json_t *step, const char *key, int64_t *count)
{
    const json_t *value = json_object_get(step, key);
    *count = json_integer_value(value);
    return json_is_integer(value) && *count >= 0
               ? STATUS_OK
               : MALFORMED(r, "the decoder's Strip needs a number '%s'", key);
}

static enum status read_decoder_step(struct reader *r, const json_t *step, struct decoder_steps *d)
{
    struct decoding *decoding = &r->tokenizer->decoding;
    if (is_type(step, "Strip") && d->fused) {
        TRY(read_character(r, step, "content", decoding->strip));
        TRY(read_count(r, step, "start", &decoding->start));
        return read_count(r, step, "stop", &decoding->end);
    }
    if (is_type(step, "Replace") && !d->fused)
        return add_replace(r, step, d->replaces);
    if (is_type(step, "Metaspace") && !d->fused) {
        char marker[5];
        bool prefix;
        const char *scheme = json_string_value(json_object_get(step, "prepend_scheme"));
        TRY(read_character(r, step, "replacement", marker));
        TRY(read_bool(r, step, "add_prefix_space", true, &prefix));
        if (scheme ? strcmp(scheme, "never") != 0 : prefix)
            memcpy(decoding->first_drops, marker, sizeof marker);
        return normalizer_add_text(d->replaces, NORMALIZER_REPLACE, marker, strlen(marker), " ", 1,
                                   r->origin);
    }
    if (is_type(step, "ByteFallback") && !d->fused) {
        d->byte_fallback = true;
        return STATUS_OK;
    }
    if (is_type(step, "Fuse")) {
        d->fused = true;
        return STATUS_OK;
    }
    return REFUSED(r,
                   "decoder '%s' is not supported%s; Replace, Metaspace, ByteFallback, then Fuse, "
                   "then Strip are",
                   type_of(step), d->fused ? " after Fuse" : " here");
}

/* Append what a token decodes to. */
static enum status decode_token(struct reader *r, const struct decoder_steps *d,
                                struct normalizer_work *work, int id, const uint8_t *text,
                                size_t bytes)
{
    int byte = d->byte_fallback ? fallback_byte(text, bytes) : -1;
    uint8_t single = (uint8_t)byte;
    TRY(normalizer_run(work, &text, &bytes));
    r->tokenizer->decoded.tokens[id] =
        (struct token){(uint32_t)r->spelling.bytes, byte >= 0 ? 1 : (uint32_t)bytes,
                       r->tokenizer->vocab.tokens[id].flags};
    text_add_bytes(&r->spelling, byte >= 0 ? &single : text, byte >= 0 ? 1 : bytes);
    return r->spelling.status;
}

static enum status decode_vocab(struct reader *r, const struct decoder_steps *d,
                                struct normalizer_work *work)
{
    const struct vocab *from = &r->tokenizer->vocab;
    const struct added_set *added = &r->tokenizer->added[1];
    struct vocab *to = &r->tokenizer->decoded;
    to->count = from->count;
    TRY(mem_alloc_array(r->env, MEM_LOADER, "tokenizer vocabulary", (size_t)from->count,
                        sizeof *to->tokens, &to->tokens));
    text_clear(&r->spelling);
    for (int id = 0; id < from->count; id++)
        TRY(decode_token(r, d, work, id, from->blob + from->tokens[id].at, from->tokens[id].bytes));
    for (int i = 0; i < added->count; i++) /* as they were matched: normalized */
        TRY(decode_token(r, d, work, added->list[i].id,
                         (const uint8_t *)added->contents.data + added->list[i].at,
                         added->list[i].bytes));
    TRY(mem_alloc(r->env, MEM_LOADER, "tokenizer vocabulary", r->spelling.bytes + 1, &to->blob));
    memcpy(to->blob, text_string(&r->spelling), r->spelling.bytes);
    return STATUS_OK;
}

enum status read_decoder(struct reader *r, const json_t *decoder)
{
    struct decoder_steps steps = {0};
    struct normalizer_work *work = NULL;
    const json_t *list = json_object_get(decoder, "decoders");
    bool sequence = is_type(decoder, "Sequence");
    enum status st;
    if (r->byte_level && normalizer_is_empty(r->tokenizer->normalizer))
        return STATUS_OK; /* the vocabulary has the bytes already */
    if (!r->byte_level && is_null(decoder))
        return REFUSED(r,
                       "%s is null, which puts a space between all tokens; use Metaspace, or a "
                       "Sequence of Replace, ByteFallback and Fuse",
                       "decoder");
    TRY(normalizer_create(r->env, &steps.replaces));
    for (size_t i = 0; !r->byte_level && i < (sequence ? json_array_size(list) : 1); i++)
        TRY_OR(done, read_decoder_step(r, sequence ? json_array_get(list, i) : decoder, &steps));
    TRY_OR(done, normalizer_work_create(r->env, steps.replaces, &work));
    st = decode_vocab(r, &steps, work);
done:
    normalizer_work_destroy(work);
    normalizer_destroy(steps.replaces);
    return st;
}
