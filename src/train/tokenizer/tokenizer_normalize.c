/* tokenizer_normalize -- changes the text before it is split: the normalizers of tokenizer.json.
 *
 * Each step writes the text of the next one. Bytes that are not valid UTF-8 are copied: no step
 * changes them, and nothing is composed or reordered across them.
 */
#include "train/tokenizer/tokenizer_impl.h"

struct normalizer_step {
    enum normalizer_kind kind;
    enum unicode_form form;
    char *pattern, *content; /* one block; content: what is prepended, or replaces the pattern */
    size_t pattern_bytes, content_bytes;
};

struct normalizer {
    struct env *env; /* borrowed */
    struct normalizer_step steps[NORMALIZER_STEPS_MAX];
    int count;
};

struct normalizer_work {
    struct env *env;                     /* borrowed */
    const struct normalizer *normalizer; /* borrowed */
    struct text texts[2];                /* in turn: the output of a step */
    struct {
        uint32_t code;
        int class;
    } * codes; /* [room]: decomposed characters that are not yet written */
    size_t count, room;
};

enum status normalizer_create(struct env *env, struct normalizer **normalizer)
{
    TRY(mem_alloc(env, MEM_LOADER, "tokenizer normalizer", sizeof **normalizer, normalizer));
    (*normalizer)->env = env;
    return STATUS_OK;
}

void normalizer_destroy(struct normalizer *n)
{
    if (!n)
        return;
    for (int i = 0; i < n->count; i++)
        mem_free(n->env, n->steps[i].pattern);
    mem_free(n->env, n);
}

bool normalizer_is_empty(const struct normalizer *n)
{
    return n->count == 0;
}

static enum status add_step(struct normalizer *n, struct normalizer_step step, const char *origin)
{
    if (n->count == NORMALIZER_STEPS_MAX) {
        mem_free(n->env, step.pattern);
        return FAIL(n->env, CONFIG, "%s: the normalizer has more than %d steps", origin,
                    NORMALIZER_STEPS_MAX);
    }
    n->steps[n->count++] = step;
    return STATUS_OK;
}

enum status normalizer_add_form(struct normalizer *n, enum unicode_form form, const char *origin)
{
    return add_step(n, (struct normalizer_step){.kind = NORMALIZER_FORM, .form = form}, origin);
}

enum status normalizer_add_lowercase(struct normalizer *n, const char *origin)
{
    return add_step(n, (struct normalizer_step){.kind = NORMALIZER_LOWERCASE}, origin);
}

enum status normalizer_add_text(struct normalizer *n, enum normalizer_kind kind,
                                const char *pattern, size_t pattern_bytes, const char *content,
                                size_t content_bytes, const char *origin)
{
    struct normalizer_step step = {
        .kind = kind, .pattern_bytes = pattern_bytes, .content_bytes = content_bytes};
    TRY(mem_alloc(n->env, MEM_LOADER, "tokenizer normalizer", pattern_bytes + content_bytes + 1,
                  &step.pattern));
    step.content = step.pattern + pattern_bytes;
    memcpy(step.pattern, pattern, pattern_bytes);
    memcpy(step.content, content, content_bytes);
    return add_step(n, step, origin);
}

/* --- working -------------------------------------------------------------------------------- */

enum status normalizer_work_create(struct env *env, const struct normalizer *normalizer,
                                   struct normalizer_work **work)
{
    TRY(mem_alloc(env, MEM_LOADER, "tokenizer normalizer", sizeof **work, work));
    (*work)->env = env;
    (*work)->normalizer = normalizer;
    for (int i = 0; i < 2; i++)
        text_init(&(*work)->texts[i], env);
    return STATUS_OK;
}

void normalizer_work_destroy(struct normalizer_work *w)
{
    if (!w)
        return;
    for (int i = 0; i < 2; i++)
        text_free(&w->texts[i]);
    mem_free(w->env, w->codes);
    mem_free(w->env, w);
}

/* --- normal forms --------------------------------------------------------------------------- */

static enum status push_code(struct normalizer_work *w, uint32_t code)
{
    if (w->count == w->room) {
        size_t room = w->room ? w->room * 2 : 64;
        TRY(mem_grow_array(w->env, MEM_LOADER, "tokenizer normalizer", room, sizeof *w->codes,
                           &w->codes));
        w->room = room;
    }
    size_t at = w->count++;
    int class = unicode_combining_class(code);
    /* in order of their classes, behind the last starter (class 0) */
    for (; class && at && w->codes[at - 1].class > class; at--)
        w->codes[at] = w->codes[at - 1];
    w->codes[at].code = code;
    w->codes[at].class = class;
    return STATUS_OK;
}

/* Compose the pending characters in place. */
static void compose_codes(struct normalizer_work *w)
{
    size_t starter = 0, kept = 0;
    bool has_starter = false;
    for (size_t i = 0; i < w->count; i++) {
        int class = w->codes[i].class, before = kept ? w->codes[kept - 1].class : 0;
        /* A character between the two blocks, unless its class is lower. */
        bool open = has_starter && (kept - 1 == starter || (before && before < class));
        uint32_t whole = open ? unicode_compose(w->codes[starter].code, w->codes[i].code) : 0;
        if (whole) {
            w->codes[starter].code = whole;
            continue;
        }
        if (!class) {
            starter = kept;
            has_starter = true;
        }
        w->codes[kept++] = w->codes[i];
    }
    w->count = kept;
}

static void write_codes(struct normalizer_work *w, bool compose, struct text *out)
{
    uint8_t utf8[4];
    if (compose)
        compose_codes(w);
    for (size_t i = 0; i < w->count; i++)
        text_add_bytes(out, utf8, utf8_write(w->codes[i].code, utf8));
    w->count = 0;
}

/* A starter ends what is pending, unless it composes with it. */
static enum status add_part(struct normalizer_work *w, uint32_t code, bool compose,
                            struct text *out)
{
    if (w->count && !unicode_combining_class(code)) {
        if (compose)
            compose_codes(w);
        uint32_t last = w->codes[w->count - 1].code;
        if (!compose || w->codes[w->count - 1].class || !unicode_compose(last, code))
            write_codes(w, compose, out);
    }
    return push_code(w, code);
}

static enum status apply_form(struct normalizer_work *w, enum unicode_form form,
                              const uint8_t *text, size_t bytes, struct text *out)
{
    bool compatible = form == UNICODE_NFKC || form == UNICODE_NFKD;
    bool compose = form == UNICODE_NFC || form == UNICODE_NFKC;
    uint32_t code, parts[UNICODE_PARTS_MAX];
    for (size_t at = 0, length; at < bytes; at += length) {
        size_t ascii =
            0; /* it never changes, and only the last one may compose with what follows */
        while (at + ascii < bytes && text[at + ascii] < 0x80)
            ascii++;
        length = ascii > 1 ? ascii - 1 : utf8_read(text + at, bytes - at, &code);
        if (ascii > 1 || !length) {
            length = length ? length : 1;
            write_codes(w, compose, out);
            text_add_bytes(out, text + at, length);
            continue;
        }
        int count = unicode_decompose(code, compatible, parts);
        for (int i = 0; i < count; i++)
            TRY(add_part(w, parts[i], compose, out));
    }
    write_codes(w, compose, out);
    return STATUS_OK;
}

/* --- the other steps ------------------------------------------------------------------------ */

static void apply_lowercase(const uint8_t *text, size_t bytes, struct text *out)
{
    uint8_t utf8[4];
    uint32_t code;
    for (size_t at = 0, length; at < bytes; at += length) {
        length = utf8_read(text + at, bytes - at, &code);
        if (!length)
            text_add_bytes(out, text + at, length = 1);
        else if (code == 0x130)
            text_add(out, "i\xcc\x87"); /* the only one that becomes two characters */
        else
            text_add_bytes(out, utf8, utf8_write(unicode_lower(code), utf8));
    }
}

static void apply_replace(const struct normalizer_step *step, const uint8_t *text, size_t bytes,
                          struct text *out)
{
    const uint8_t *end = text + bytes, *found;
    while ((found = memmem(text, (size_t)(end - text), step->pattern, step->pattern_bytes))) {
        text_add_bytes(out, text, (size_t)(found - text));
        text_add_bytes(out, step->content, step->content_bytes);
        text = found + step->pattern_bytes;
    }
    text_add_bytes(out, text, (size_t)(end - text));
}

enum status normalizer_run(struct normalizer_work *w, const uint8_t **text, size_t *bytes)
{
    const struct normalizer *n = w->normalizer;
    for (int i = 0; i < n->count && *bytes; i++) {
        const struct normalizer_step *step = &n->steps[i];
        struct text *out = &w->texts[i % 2];
        text_clear(out);
        switch (step->kind) {
        case NORMALIZER_FORM: TRY(apply_form(w, step->form, *text, *bytes, out)); break;
        case NORMALIZER_LOWERCASE: apply_lowercase(*text, *bytes, out); break;
        case NORMALIZER_REPLACE: apply_replace(step, *text, *bytes, out); break;
        case NORMALIZER_PREPEND:
            text_add_bytes(out, step->content, step->content_bytes);
            text_add_bytes(out, *text, *bytes);
            break;
        }
        TRY(out->status);
        *text = (const uint8_t *)text_string(out);
        *bytes = out->bytes;
    }
    return STATUS_OK;
}
