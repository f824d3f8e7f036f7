/* tokenizer_split -- splits a section of text into pre-tokens by the regexes of tokenizer.json.
 *
 * The regexes are written for Oniguruma; PCRE2 runs them here, with JIT. They are rewritten where
 * the two engines differ: \s and \S (at U+180E), \w, \b, a bare script name in \p{}, and nested
 * sets. ^ and $ match at line breaks. Constructs that cannot be rewritten (&& in sets, \h) are
 * refused.
 *
 * PCRE2 would validate the rest of the text at every call, which is quadratic. Therefore the text
 * is divided once into runs of valid UTF-8, and the regex runs unchecked inside a run. Each byte
 * that is not part of a character becomes a pre-token.
 *
 * Matches are pre-tokens, and so is the text between two matches: no byte is dropped.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include "train/tokenizer/tokenizer_impl.h"

#define REGEX_MAX       16
#define REGEX_BYTES_MAX 65536
#define JIT_STACK_MIN   (32 * 1024)
#define JIT_STACK_MAX   (1024 * 1024)
#define INTERPRETER_KIB (64 * 1024) /* heap limit of the interpreter, the fallback of the JIT */
/* \w; outside of sets, Oniguruma also includes six digits and fractions of Latin-1. */
#define WORD_SET      "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define WORD_ALL      WORD_SET "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
#define WORD          "[" WORD_ALL "]"
#define REGEX_COMPILE (PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_MULTILINE)

struct splitter {
    struct env *env; /* borrowed */
    pcre2_general_context *memory;
    pcre2_compile_context *compile;
    pcre2_code *regex[REGEX_MAX];
    bool jit[REGEX_MAX];
    int count;
};

struct split_work {
    struct env *env;                 /* borrowed */
    const struct splitter *splitter; /* borrowed */
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    split_pretoken_fn *each; /* of the call in progress */
    void *user;
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

/* --- rewriting Oniguruma's syntax for PCRE2 ------------------------------------------------- */

struct rewrite {
    struct splitter *splitter;
    const char *regex, *origin;
    size_t bytes, at;
    int in_set; /* depth of nested [...]; 0 = outside */
    struct text out;
};

static void rewrite_keep(struct rewrite *r, size_t length)
{
    text_add_bytes(&r->out, r->regex + r->at, length);
    r->at += length;
}

static char peek(const struct rewrite *r, size_t ahead)
{
    return r->at + ahead < r->bytes ? r->regex[r->at + ahead] : 0;
}

static enum status try_compile(struct splitter *splitter, const char *regex, bool *compiles)
{
    int code;
    size_t where;
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)regex, PCRE2_ZERO_TERMINATED, REGEX_COMPILE,
                                         &code, &where, splitter->compile);
    pcre2_code_free(compiled);
    *compiles = compiled != NULL;
    return !compiled && code == PCRE2_ERROR_HEAP_FAILED ? STATUS_MEMORY : STATUS_OK;
}

/* \p{Han} is the script's own characters in Oniguruma, and also the characters it shares with other
 * scripts in PCRE2, where \p{sc:Han} is the former. */
static enum status rewrite_property(struct rewrite *r)
{
    char script[64];
    bool compiles;
    const char *open = r->regex + r->at + 2, *close;
    size_t left = r->bytes - r->at - 2, length;
    if (left && *open == '{' && (close = memchr(open, '}', left)) != NULL) {
        length = (size_t)(close - open - 1);
        if (length > 2 && length < 40 && open[1] != '^') {
            snprintf(script, sizeof script, "\\%c{sc:%.*s}", r->regex[r->at + 1], (int)length,
                     open + 1);
            TRY(try_compile(r->splitter, script, &compiles));
            if (compiles) {
                text_add(&r->out, script);
                r->at += length + 4;
                return STATUS_OK;
            }
        }
    }
    rewrite_keep(r, 2);
    return STATUS_OK;
}

/* The replacement of an escape outside and inside a set: NULL keeps it, "" refuses it. */
static const struct escape {
    char letter;
    const char *outside, *inside;
} escapes[] = {
    {'s', "\\p{White_Space}", "\\p{White_Space}"},
    {'S', "\\P{White_Space}", "\\P{White_Space}"},
    {'w', WORD, WORD_SET},
    {'W', "[^" WORD_ALL "]", ""},
    {'b', "(?:(?<=" WORD ")(?!" WORD ")|(?<!" WORD ")(?=" WORD "))", NULL},
    {'B', "(?:(?<=" WORD ")(?=" WORD ")|(?<!" WORD ")(?!" WORD "))", ""},
    {'h', "", ""},
    {'H', "", ""},
    {'Q', "", ""},
    {'\0', "", ""}, /* a backslash at the end */
};

static enum status rewrite_escape(struct rewrite *r)
{
    char letter = peek(r, 1);
    const char *becomes = NULL;
    if (letter == 'p' || letter == 'P')
        return rewrite_property(r);
    for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++)
        if (escapes[i].letter == letter)
            becomes = r->in_set ? escapes[i].inside : escapes[i].outside;
    if (becomes && !*becomes)
        return FAIL(r->splitter->env, CONFIG,
                    "%s: the regex of the pre_tokenizer uses '\\%c'%s, which is not supported",
                    r->origin, letter ? letter : '\\', r->in_set ? " in a set" : "");
    if (becomes) {
        text_add(&r->out, becomes);
        r->at += 2;
    } else {
        rewrite_keep(r, 2);
    }
    return STATUS_OK;
}

/* Inside [...]: a nested set is a union, so its brackets are dropped. */
static enum status rewrite_in_set(struct rewrite *r)
{
    char c = r->regex[r->at];
    const char *end = memchr(r->regex + r->at, ']', r->bytes - r->at);
    if ((c == '[' && peek(r, 1) == '^') || (c == '&' && peek(r, 1) == '&'))
        return FAIL(r->splitter->env, CONFIG,
                    "%s: the regex of the pre_tokenizer has a negated set inside a set, or &&, "
                    "which is not supported",
                    r->origin);
    if (c == '[' && peek(r, 1) == ':' && end) { /* [:name:] */
        rewrite_keep(r, (size_t)(end - (r->regex + r->at)) + 1);
    } else if (c == '[') {
        r->in_set++;
        r->at++;
    } else if (c == ']' && --r->in_set > 0) {
        r->at++;
    } else {
        rewrite_keep(r, 1);
    }
    return STATUS_OK;
}

static enum status rewrite_run(struct rewrite *r)
{
    while (r->at < r->bytes) {
        char c = r->regex[r->at];
        if (c == '\\') {
            TRY(rewrite_escape(r));
        } else if (r->in_set) {
            TRY(rewrite_in_set(r));
        } else if (c == '[') {
            size_t length = peek(r, 1) == '^' ? 2 : 1;
            r->in_set = 1;
            rewrite_keep(r,
                         peek(r, length) == ']' ? length + 1 : length); /* a leading ] is literal */
        } else {
            rewrite_keep(r, 1);
        }
    }
    return r->out.status;
}

/* --- the compiled regexes ------------------------------------------------------------------- */

enum status splitter_create(struct env *env, struct splitter **splitter)
{
    struct splitter *s;
    TRY(mem_alloc(env, MEM_LOADER, "tokenizer splitter", sizeof *s, &s));
    s->env = env;
    s->memory = pcre2_general_context_create(regex_malloc, regex_free, env);
    s->compile = s->memory ? pcre2_compile_context_create(s->memory) : NULL;
    if (!s->compile) {
        splitter_destroy(s);
        return STATUS_MEMORY; /* logged by regex_malloc */
    }
    pcre2_set_newline(s->compile, PCRE2_NEWLINE_LF);
    *splitter = s;
    return STATUS_OK;
}

void splitter_destroy(struct splitter *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->count; i++)
        pcre2_code_free(s->regex[i]);
    pcre2_compile_context_free(s->compile);
    pcre2_general_context_free(s->memory);
    mem_free(s->env, s);
}

static enum status compile(struct splitter *s, const struct text *regex, const char *origin)
{
    int code;
    size_t where;
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)text_string(regex), regex->bytes,
                                         REGEX_COMPILE, &code, &where, s->compile);
    if (!compiled) {
        char message[128];
        if (code == PCRE2_ERROR_HEAP_FAILED)
            return STATUS_MEMORY;
        pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
        return FAIL(s->env, FORMAT, "%s: the regex of the pre_tokenizer: %s at offset %zu of '%s'",
                    origin, message, where, text_string(regex));
    }
    /* Without JIT (a system may forbid it) the interpreter gives the same result, more slowly. */
    s->jit[s->count] = pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE) == 0;
    s->regex[s->count++] = compiled;
    return STATUS_OK;
}

enum status splitter_add(struct splitter *s, const char *regex, size_t bytes, const char *origin)
{
    struct rewrite rewrite = {.splitter = s, .regex = regex, .origin = origin, .bytes = bytes};
    if (s->count == REGEX_MAX || bytes > REGEX_BYTES_MAX)
        return FAIL(s->env, CONFIG,
                    "%s: the pre_tokenizer has more than %d regexes, or one of more than "
                    "%d bytes",
                    origin, REGEX_MAX, REGEX_BYTES_MAX);
    text_init(&rewrite.out, s->env);
    enum status st = rewrite_run(&rewrite);
    if (st == STATUS_OK)
        st = compile(s, &rewrite.out, origin);
    text_free(&rewrite.out);
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
    mem_free(w->env, w);
}

/* The length of the longest prefix that is valid UTF-8. */
static size_t utf8_run(const uint8_t *text, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        uint64_t eight;
        if (bytes - at >= 8 && (memcpy(&eight, text + at, 8), !(eight & 0x8080808080808080u))) {
            at += 8;
            continue;
        }
        uint8_t c = text[at];
        /* Some first bytes narrow the range of the second: no overlong forms, no surrogates,
         * nothing above U+10FFFF. */
        uint8_t low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
        uint8_t high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
        size_t length = c < 0x80   ? 1
                        : c < 0xc2 ? 0
                        : c < 0xe0 ? 2
                        : c < 0xf0 ? 3
                        : c < 0xf5 ? 4
                                   : 0;
        if (!length || length > bytes - at)
            return at;
        if (length > 1 && (text[at + 1] < low || text[at + 1] > high))
            return at;
        for (size_t i = 2; i < length; i++)
            if ((text[at + i] & 0xc0) != 0x80)
                return at;
        at += length;
    }
    return at;
}

/* Returns 1 and the range of the match, 0 if there is none, or a negative PCRE2 error. */
static int find(struct split_work *w, int step, const uint8_t *text, size_t bytes, size_t from,
                size_t *start, size_t *end)
{
    const struct splitter *s = w->splitter;
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (s->jit[step])
        rc = pcre2_jit_match(s->regex[step], text, bytes, from, 0, w->match, w->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(s->regex[step], text, bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         w->match, w->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    const size_t *range = pcre2_get_ovector_pointer(w->match);
    *start = range[0];
    *end = range[1];
    return rc < 0 ? rc : 1;
}

static enum status split_step(struct split_work *w, int step, const uint8_t *text, size_t bytes)
{
    size_t from = 0, done = 0, start, end;
    if (step == w->splitter->count)
        return bytes ? w->each(w->user, text, bytes) : STATUS_OK;
    while (from < bytes) {
        int found = find(w, step, text, bytes, from, &start, &end);
        if (found == 0)
            break;
        if (found == PCRE2_ERROR_NOMEMORY)
            return FAIL(w->env, MEMORY,
                        "out of memory for the regex of the tokenizer's pre_tokenizer");
        if (found < 0) {
            char message[128];
            pcre2_get_error_message(found, (PCRE2_UCHAR *)message, sizeof message);
            return FAIL(w->env, FORMAT,
                        "the regex of the tokenizer's pre_tokenizer failed on this text: %s",
                        message);
        }
        if (start < done || end < start) /* possible with \K */
            return FAIL(w->env, FORMAT,
                        "the regex of the tokenizer's pre_tokenizer moves backwards");
        if (start > done)
            TRY(split_step(w, step + 1, text + done, start - done));
        if (end > start)
            TRY(split_step(w, step + 1, text + start, end - start));
        done = from = end;
        if (end == start) /* an empty match: continue after the next character */
            do
                from++;
            while (from < bytes && (text[from] & 0xc0) == 0x80);
    }
    return split_step(w, step + 1, text + done, bytes - done);
}

enum status split_text(struct split_work *w, const uint8_t *text, size_t bytes,
                       split_pretoken_fn *each, void *user)
{
    w->each = each;
    w->user = user;
    while (bytes) {
        size_t run = utf8_run(text, bytes);
        TRY(split_step(w, 0, text, run));
        if (run < bytes)
            TRY(each(user, text + run++, 1));
        text += run;
        bytes -= run;
    }
    return STATUS_OK;
}
