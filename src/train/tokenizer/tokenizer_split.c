/* tokenizer_split -- splits a section of text into pre-tokens, by the steps of tokenizer.json.
 *
 * A step is a regex and what happens to its matches: they are kept apart, joined with their
 * neighbours or removed. PCRE2 runs the regexes, with JIT, over the symbols of tokenizer_symbols.c:
 * one byte per character, so that a range of symbols is a range of characters. ASCII text is its
 * own symbols and is not copied.
 *
 * Only runs of valid UTF-8 have characters. Each byte between them becomes a pre-token.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include "train/tokenizer/tokenizer_impl.h"

#define STEPS_MAX       16
#define REGEX_BYTES_MAX 65536
#define JIT_STACK_MIN   (32 * 1024)
#define JIT_STACK_MAX   (1024 * 1024)
#define INTERPRETER_KIB (64 * 1024) /* heap limit of the interpreter, the fallback of the JIT */

struct step {
    char *source; /* the regex as it was added */
    size_t source_bytes;
    enum split_behavior behavior;
    bool invert;
    pcre2_code *regex;
    bool jit;
};

struct splitter {
    struct env *env; /* borrowed */
    pcre2_general_context *memory;
    pcre2_compile_context *compile;
    struct symbols *symbols;
    struct step steps[STEPS_MAX];
    int count;
};

struct split_work {
    struct env *env;                 /* borrowed */
    const struct splitter *splitter; /* borrowed */
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    uint8_t *mapped; /* [room]: the symbols of a run */
    size_t room;
    /* of the call in progress */
    split_pretoken_fn *each;
    void *user;
    const uint8_t *symbols; /* of the run: `mapped`, or the text itself */
    const uint8_t *text;    /* of the run, from the last pre-token on */
    size_t symbol_at;       /* its first symbol */
};

/* PCRE2's allocations are counted in the memory account. */
static void *regex_malloc(size_t bytes, void *env)
{
    void *block;
    return mem_alloc(env, MEM_LOADER, "tokenizer regex", bytes, &block) == STATUS_OK ? block : NULL;
}

static void regex_free(void *block, void *env)
{
    mem_free(env, block);
}

/* --- the compiled steps --------------------------------------------------------------------- */

enum status splitter_create(struct env *env, struct splitter **splitter)
{
    struct splitter *s;
    enum status st = STATUS_MEMORY; /* logged by regex_malloc */
    TRY(mem_alloc(env, MEM_LOADER, "tokenizer splitter", sizeof *s, &s));
    s->env = env;
    s->memory = pcre2_general_context_create(regex_malloc, regex_free, env);
    s->compile = s->memory ? pcre2_compile_context_create(s->memory) : NULL;
    if (!s->compile)
        goto undo;
    pcre2_set_newline(s->compile, PCRE2_NEWLINE_LF);
    TRY_OR(undo, symbols_create(env, &s->symbols));
    *splitter = s;
    return STATUS_OK;
undo:
    splitter_destroy(s);
    return st;
}

void splitter_destroy(struct splitter *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->count; i++) {
        pcre2_code_free(s->steps[i].regex);
        mem_free(s->env, s->steps[i].source);
    }
    symbols_destroy(s->symbols);
    pcre2_compile_context_free(s->compile);
    pcre2_general_context_free(s->memory);
    mem_free(s->env, s);
}

enum status splitter_add(struct splitter *s, const char *regex, size_t bytes,
                         enum split_behavior behavior, bool invert, const char *origin)
{
    struct step *step = &s->steps[s->count];
    struct text unused;
    if (s->count == STEPS_MAX || bytes > REGEX_BYTES_MAX)
        return FAIL(s->env, CONFIG,
                    "%s: the pre_tokenizer has more than %d regexes, or one of more than "
                    "%d bytes",
                    origin, STEPS_MAX, REGEX_BYTES_MAX);
    TRY(mem_alloc(s->env, MEM_LOADER, "tokenizer regex", bytes + 1, &step->source));
    memcpy(step->source, regex, bytes);
    step->source_bytes = bytes;
    step->behavior = behavior;
    step->invert = invert;
    s->count++;
    text_init(&unused, s->env);
    enum status st =
        regex_translate(s->env, s->symbols, true, step->source, bytes, origin, &unused);
    text_free(&unused);
    return st;
}

static enum status compile(struct splitter *s, struct step *step, const struct text *regex,
                           const char *origin)
{
    int code;
    size_t where;
    step->regex = pcre2_compile((PCRE2_SPTR)text_string(regex), regex->bytes, PCRE2_MULTILINE,
                                &code, &where, s->compile);
    if (!step->regex) {
        char message[128];
        if (code == PCRE2_ERROR_HEAP_FAILED)
            return STATUS_MEMORY;
        pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
        return FAIL(s->env, FORMAT, "%s: the regex of the pre_tokenizer: %s in '%s'", origin,
                    message, step->source);
    }
    /* Without JIT (a system may forbid it) the interpreter gives the same result, more slowly. */
    step->jit = pcre2_jit_compile(step->regex, PCRE2_JIT_COMPLETE) == 0;
    return STATUS_OK;
}

enum status splitter_finish(struct splitter *s, const char *origin)
{
    struct text regex;
    enum status st = STATUS_OK;
    TRY(symbols_finish(s->symbols, origin));
    text_init(&regex, s->env);
    for (int i = 0; i < s->count && st == STATUS_OK; i++) {
        text_clear(&regex);
        st = regex_translate(s->env, s->symbols, false, s->steps[i].source,
                             s->steps[i].source_bytes, origin, &regex);
        if (st == STATUS_OK)
            st = compile(s, &s->steps[i], &regex, origin);
    }
    text_free(&regex);
    return st;
}

/* --- splitting ------------------------------------------------------------------------------ */

enum status split_work_create(struct env *env, const struct splitter *splitter,
                              struct split_work **work)
{
    struct split_work *w;
    TRY(mem_alloc(env, MEM_LOADER, "tokenizer splitter", sizeof *w, &w));
    w->env = env;
    w->splitter = splitter;
    pcre2_general_context *memory = pcre2_general_context_create(regex_malloc, regex_free, env);
    if (memory) {
        w->match = pcre2_match_data_create(1, memory);
        w->context = pcre2_match_context_create(memory);
        w->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, memory);
        pcre2_general_context_free(memory);
    }
    if (!w->match || !w->context) {
        split_work_destroy(w);
        return STATUS_MEMORY;
    }
    pcre2_set_heap_limit(w->context, INTERPRETER_KIB);
    if (w->stack) /* NULL where there is no JIT */
        pcre2_jit_stack_assign(w->context, NULL, w->stack);
    *work = w;
    return STATUS_OK;
}

void split_work_destroy(struct split_work *w)
{
    if (!w)
        return;
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->context);
    pcre2_jit_stack_free(w->stack);
    mem_free(w->env, w->mapped);
    mem_free(w->env, w);
}

/* The length of the longest prefix that is valid UTF-8, and whether it is ASCII. */
static size_t utf8_run(const uint8_t *text, size_t bytes, bool *ascii)
{
    size_t at = 0, length;
    uint32_t code;
    *ascii = true;
    for (; at < bytes; at += length) {
        uint64_t eight;
        length = 8;
        if (bytes - at >= 8 && (memcpy(&eight, text + at, 8), !(eight & 0x8080808080808080u)))
            continue;
        length = utf8_read(text + at, bytes - at, &code);
        if (!length)
            return at;
        *ascii &= length == 1;
    }
    return at;
}

/* Pass on the pre-token of these symbols. Pre-tokens come in order. */
static enum status emit(struct split_work *w, size_t start, size_t end)
{
    const uint8_t *from;
    if (w->symbols != w->mapped) {
        from = w->symbols + start;
        w->text = w->symbols + end;
    } else {
        const uint8_t *at = w->text;
        for (size_t n = start - w->symbol_at; n; n--)
            at += 1 + (*at >= 0xc0) + (*at >= 0xe0) + (*at >= 0xf0);
        from = at;
        for (size_t n = end - start; n; n--)
            at += 1 + (*at >= 0xc0) + (*at >= 0xe0) + (*at >= 0xf0);
        w->text = at;
        w->symbol_at = end;
    }
    return w->each(w->user, from, (size_t)(w->text - from));
}

/* Returns 1 and the range of the match, 0 if there is none, or a negative PCRE2 error. */
static int find(struct split_work *w, const struct step *step, const uint8_t *symbols, size_t count,
                size_t from, size_t *start, size_t *end)
{
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (step->jit)
        rc = pcre2_jit_match(step->regex, symbols, count, from, 0, w->match, w->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(step->regex, symbols, count, from, PCRE2_NO_JIT, w->match, w->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    const size_t *range = pcre2_get_ovector_pointer(w->match);
    *start = range[0];
    *end = range[1];
    return rc < 0 ? rc : 1;
}

static enum status find_failed(struct split_work *w, int code)
{
    char message[128];
    if (code == PCRE2_ERROR_NOMEMORY)
        return FAIL(w->env, MEMORY, "out of memory for the regex of the tokenizer's pre_tokenizer");
    pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
    return FAIL(w->env, FORMAT,
                "the regex of the tokenizer's pre_tokenizer failed on this text: %s", message);
}

/* The parts of one step: matches and the text between them, to be joined by its behavior. */
struct parts {
    struct split_work *work;
    int step;
    size_t start, end; /* the last part, not yet passed on */
    bool any, matched; /* there is a last part; it, or what was joined to it last, is a match */
};

static enum status split_step(struct split_work *w, int step, size_t start, size_t end);

static enum status parts_pass(struct parts *p)
{
    enum split_behavior behavior = p->work->splitter->steps[p->step].behavior;
    if (!p->any || (behavior == SPLIT_REMOVED && p->matched))
        return STATUS_OK;
    return split_step(p->work, p->step + 1, p->start, p->end);
}

static enum status parts_add(struct parts *p, size_t start, size_t end, bool match)
{
    const struct step *step = &p->work->splitter->steps[p->step];
    match ^= step->invert;
    bool joins = p->any && ((step->behavior == SPLIT_CONTIGUOUS && match == p->matched) ||
                            (step->behavior == SPLIT_WITH_PREVIOUS && match && !p->matched) ||
                            (step->behavior == SPLIT_WITH_NEXT && !match && p->matched));
    if (!joins) {
        TRY(parts_pass(p));
        p->start = start;
    }
    p->end = end;
    p->matched = match;
    p->any = true;
    return STATUS_OK;
}

static enum status split_step(struct split_work *w, int number, size_t start, size_t end)
{
    const struct step *step = &w->splitter->steps[number];
    struct parts parts = {.work = w, .step = number};
    if (start == end)
        return STATUS_OK;
    if (number == w->splitter->count)
        return emit(w, start, end);
    const uint8_t *symbols = w->symbols + start;
    size_t count = end - start, from = 0, done = 0, at, to;
    while (from < count) {
        int found = find(w, step, symbols, count, from, &at, &to);
        if (found < 0)
            return find_failed(w, found);
        if (!found)
            break;
        if (at > done)
            TRY(parts_add(&parts, start + done, start + at, false));
        TRY(parts_add(&parts, start + at, start + to, true));
        done = to;
        from = to > at ? to : to + 1; /* after an empty match, from the next character */
    }
    if (done < count)
        TRY(parts_add(&parts, start + done, end, false));
    return parts_pass(&parts);
}

static enum status split_run(struct split_work *w, const uint8_t *text, size_t bytes, bool ascii)
{
    size_t count = bytes;
    if (!ascii && bytes > w->room) {
        mem_free(w->env, w->mapped);
        w->mapped = NULL;
        w->room = 0;
        TRY(mem_alloc(w->env, MEM_LOADER, "tokenizer symbols", bytes + bytes / 2, &w->mapped));
        w->room = bytes + bytes / 2;
    }
    if (!ascii)
        count = symbols_map(w->splitter->symbols, text, bytes, w->mapped);
    w->symbols = ascii ? text : w->mapped;
    w->text = text;
    w->symbol_at = 0;
    return split_step(w, 0, 0, count);
}

enum status split_text(struct split_work *w, const uint8_t *text, size_t bytes,
                       split_pretoken_fn *each, void *user)
{
    w->each = each;
    w->user = user;
    while (bytes) {
        bool ascii;
        size_t run = utf8_run(text, bytes, &ascii);
        TRY(split_run(w, text, run, ascii));
        if (run < bytes)
            TRY(each(user, text + run++, 1));
        text += run;
        bytes -= run;
    }
    return STATUS_OK;
}
