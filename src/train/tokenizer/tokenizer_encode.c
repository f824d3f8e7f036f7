/* tokenizer_encode -- encodes a text: cuts out added tokens, normalizes the sections between them,
 * splits them into pre-tokens, and merges each pre-token into ids.
 *
 * Added tokens are matched in two passes: first those that bypass the normalizer, in the raw text,
 * then the others in the normalized sections. All mutable state is in the encoder.
 */
#include "train/tokenizer/tokenizer_impl.h"

struct encoder {
    struct env *env;                   /* borrowed */
    const struct tokenizer *tokenizer; /* borrowed */
    struct normalizer_work *normalizer;
    struct split_work *split;
    struct bpe_work *bpe;
    struct text prefixed; /* a section with a prefix, its spaces replaced */

    /* of the call in progress */
    struct token_list *out;
    bool special;
    tokenizer_ids_fn *each; /* receives the ids; NULL = they stay in `out` */
    void *user;
    struct token_list batch; /* ids not yet passed to `each` */
};

enum { BATCH_IDS = 1 << 16 }; /* a batch is passed to `each` when it has more ids */

enum status encoder_create(struct env *env, const struct tokenizer *tokenizer,
                           struct encoder **encoder)
{
    struct encoder *e;
    enum status st;
    TRY(mem_alloc(env, MEM_LOADER, "encoder", sizeof *e, &e));
    e->env = env;
    e->tokenizer = tokenizer;
    text_init(&e->prefixed, env);
    TRY_OR(undo, normalizer_work_create(env, tokenizer->normalizer, &e->normalizer));
    TRY_OR(undo, split_work_create(env, tokenizer->splitter, &e->split));
    TRY_OR(undo, bpe_work_create(env, tokenizer->bpe, &e->bpe));
    *encoder = e;
    return STATUS_OK;
undo:
    encoder_destroy(e);
    return st;
}

void encoder_destroy(struct encoder *e)
{
    if (!e)
        return;
    bpe_work_destroy(e->bpe);
    split_work_destroy(e->split);
    normalizer_work_destroy(e->normalizer);
    text_free(&e->prefixed);
    token_list_free(e->env, &e->batch);
    mem_free(e->env, e);
}

/* Pass the ids to `each` if there are more than `most`. */
static enum status flush_ids(struct encoder *e, int64_t most)
{
    if (!e->each || e->out->count <= most)
        return STATUS_OK;
    TRY(e->each(e->user, e->out->ids, e->out->count));
    e->out->count = 0;
    return STATUS_OK;
}

static enum status encode_pretoken(void *user, const uint8_t *pretoken, size_t bytes)
{
    struct encoder *e = user;
    TRY(bpe_encode(e->bpe, pretoken, bytes, e->out));
    return flush_ids(e, BATCH_IDS);
}

static enum status encode_plain(struct encoder *e, const uint8_t *text, size_t bytes)
{
    for (size_t at = 0, part; at < bytes; at += part) {
        part = e->each && bytes - at > BATCH_IDS ? BATCH_IDS : bytes - at;
        TRY(bpe_encode_plain(e->env, e->tokenizer->bpe, text + at, part, e->out));
        TRY(flush_ids(e, BATCH_IDS));
    }
    return STATUS_OK;
}

/* Replace the spaces of a section by the marker, and put the marker in front. */
static enum status mark_section(struct encoder *e, const uint8_t **text, size_t *bytes, bool first)
{
    const struct sectioning *rule = &e->tokenizer->sectioning;
    const uint8_t *from = *text, *end = from + *bytes, *space;
    size_t marker_bytes = strlen(rule->marker);
    bool marked = (rule->replaces_spaces && from[0] == ' ') ||
                  (*bytes >= marker_bytes && memcmp(from, rule->marker, marker_bytes) == 0);
    bool prefix =
        !marked && (rule->scheme == PREFIX_ALWAYS || (rule->scheme == PREFIX_FIRST && first));
    if (!prefix && !rule->replaces_spaces)
        return STATUS_OK;
    text_clear(&e->prefixed);
    if (prefix)
        text_add(&e->prefixed, rule->marker);
    while (rule->replaces_spaces && (space = memchr(from, ' ', (size_t)(end - from)))) {
        text_add_bytes(&e->prefixed, from, (size_t)(space - from));
        text_add(&e->prefixed, rule->marker);
        from = space + 1;
    }
    text_add_bytes(&e->prefixed, from, (size_t)(end - from));
    *text = (const uint8_t *)text_string(&e->prefixed);
    *bytes = e->prefixed.bytes;
    return e->prefixed.status;
}

static enum status encode_section(struct encoder *e, const uint8_t *text, size_t bytes, bool first)
{
    if (!bytes)
        return STATUS_OK;
    TRY(mark_section(e, &text, &bytes, first));
    if (bpe_is_plain(e->tokenizer->bpe))
        return encode_plain(e, text, bytes);
    return split_text(e->split, text, bytes, encode_pretoken, e);
}

/* Cut out the tokens of added[pass]. The sections between them go to the next pass and, after the
 * last pass, to the regexes. `first`: the text starts where the caller's text does. */
static enum status cut_added(struct encoder *e, int pass, const uint8_t *text, size_t bytes,
                             bool first)
{
    if (pass == 2)
        return encode_section(e, text, bytes, first);
    if (pass == 1)
        TRY(normalizer_run(e->normalizer, &text, &bytes));
    const struct added_set *set = &e->tokenizer->added[pass];
    bool any = e->special ? set->count > 0 : set->ordinary_count > 0;
    struct added_match match;
    size_t done = 0, at = 0;
    while (any && added_find(set, text, bytes, at, &match)) {
        at = match.end;
        if (match.token->special && !e->special)
            continue;
        size_t start = match.start, end = match.end;
        if (match.token->lstrip && start > done)
            start -= added_space_before(text + done, start - done);
        if (match.token->rstrip)
            end += added_space_after(text + end, bytes - end);
        if (start > done)
            TRY(cut_added(e, pass + 1, text + done, start - done, first && !done));
        TRY(token_list_reserve(e->env, e->out, 1));
        e->out->ids[e->out->count++] = match.token->id;
        TRY(flush_ids(e, BATCH_IDS));
        done = end;
    }
    return done < bytes ? cut_added(e, pass + 1, text + done, bytes - done, first && !done)
                        : STATUS_OK;
}

enum status tokenizer_encode(struct encoder *e, const void *text, size_t bytes, bool special,
                             struct token_list *out)
{
    e->out = out;
    e->special = special;
    e->each = NULL;
    return cut_added(e, 0, text, bytes, true);
}

enum status tokenizer_encode_each(struct encoder *e, const void *text, size_t bytes, bool special,
                                  tokenizer_ids_fn *each, void *user)
{
    e->out = &e->batch;
    e->batch.count = 0;
    e->special = special;
    e->each = each;
    e->user = user;
    TRY(cut_added(e, 0, text, bytes, true));
    return flush_ids(e, 0);
}

enum status token_list_grow(struct env *env, struct token_list *list, int64_t more)
{
    int64_t room = list->room * 2 > list->count + more ? list->room * 2 : list->count + more;
    if (room < 256)
        room = 256;
    TRY(mem_grow_array(env, MEM_LOADER, "token ids", (size_t)room, sizeof *list->ids, &list->ids));
    list->room = room;
    return STATUS_OK;
}

void token_list_free(struct env *env, struct token_list *list)
{
    mem_free(env, list->ids);
    *list = (struct token_list){0};
}
