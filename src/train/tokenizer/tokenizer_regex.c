/* tokenizer_regex -- translates a regex of tokenizer.json for PCRE2, over the bytes of
 * tokenizer_symbols.c.
 *
 * The regexes are written for Oniguruma. Every set, property and literal becomes a set of symbols,
 * computed from our Unicode tables, so that PCRE2's tables and case folding are never used. What
 * the two engines read alike (groups, lookaround, alternatives, quantifiers) is copied; X{n,m}+,
 * which repeats in Oniguruma and is possessive in PCRE2, and {,n} are rewritten. The rest (back
 * references, \X, \K, conditions, extended syntax) is refused by name.
 *
 * A regex is translated twice: the first pass only collects the items that it tells characters
 * apart by, the second knows the symbols.
 */
#include <stdlib.h>
#include "train/tokenizer/tokenizer_impl.h"

enum { GROUPS_MAX = 64, SETS_MAX = 16 };

struct group {
    bool caseless;
    int extra;    /* groups that (?i) opened inside; they end with it */
    size_t start; /* offset in `out` */
};

struct translation {
    struct env *env;         /* borrowed */
    struct symbols *symbols; /* borrowed */
    bool collecting;
    const char *regex, *origin; /* borrowed */
    size_t bytes, at;
    struct group groups[GROUPS_MAX];
    int depth;   /* of groups; groups[0] is the regex */
    size_t atom; /* where in `out` the last atom starts */
    struct text *out;
};

static enum status refuse(struct translation *t, const char *what, size_t bytes)
{
    return FAIL(t->env, CONFIG,
                "%s: the regex of the pre_tokenizer uses '%.*s', which is not supported", t->origin,
                (int)bytes, what);
}

static enum status malformed(struct translation *t, const char *what)
{
    return FAIL(t->env, FORMAT, "%s: the regex of the pre_tokenizer: %s at offset %zu of '%.*s'",
                t->origin, what, t->at, (int)t->bytes, t->regex);
}

static char peek(const struct translation *t, size_t ahead)
{
    return t->at + ahead < t->bytes ? t->regex[t->at + ahead] : 0;
}

static bool starts(const struct translation *t, const char *with)
{
    size_t length = strlen(with);
    return t->bytes - t->at >= length && memcmp(t->regex + t->at, with, length) == 0;
}

/* --- sets of symbols ------------------------------------------------------------------------ */

static void set_join(struct symbol_set *set, struct symbol_set other)
{
    for (int i = 0; i < 4; i++)
        set->bits[i] |= other.bits[i];
}

static void set_negate(struct symbol_set *set)
{
    for (int i = 0; i < 4; i++)
        set->bits[i] = ~set->bits[i];
}

static enum status join_item(struct translation *t, struct symbol_item item, struct symbol_set *set)
{
    int index = symbols_add(t->symbols, item);
    if (index < 0)
        return FAIL(t->env, CONFIG,
                    "%s: the regexes of the pre_tokenizer name more than %d properties and "
                    "characters, which is not supported",
                    t->origin, SYMBOL_ITEMS_MAX);
    if (!t->collecting)
        set_join(set, symbols_having(t->symbols, index));
    return STATUS_OK;
}

static enum status join_range(struct translation *t, uint32_t low, uint32_t high,
                              struct symbol_set *set)
{
    for (uint32_t c = low; c <= high && c < 128; c++)
        symbol_set_add(set, (int)c);
    if (high < 128)
        return STATUS_OK;
    return join_item(t, (struct symbol_item){.low = low < 128 ? 128 : low, .high = high}, set);
}

/* A range and, where case is ignored, the other case of its letters. */
static enum status join_cases(struct translation *t, uint32_t low, uint32_t high,
                              struct symbol_set *set)
{
    static const uint32_t more[][2] = {{'s', 0x17f}, {'k', 0x212a}}; /* ſ and the Kelvin sign */
    TRY(join_range(t, low, high, set));
    if (!t->groups[t->depth].caseless)
        return STATUS_OK;
    if (high >= 128)
        return refuse(t, "(?i) with characters beyond ASCII", 33);
    for (uint32_t c = 'a'; c <= 'z'; c++)
        if ((c >= low && c <= high) || (c - 32 >= low && c - 32 <= high)) {
            TRY(join_range(t, c, c, set));
            TRY(join_range(t, c - 32, c - 32, set));
            for (size_t i = 0; i < sizeof more / sizeof *more; i++)
                if (more[i][0] == c)
                    TRY(join_range(t, more[i][1], more[i][1], set));
        }
    return STATUS_OK;
}

/* Write a set as an atom. */
static void write_set(struct translation *t, struct symbol_set set)
{
    t->atom = t->out->bytes;
    text_add(t->out, "[");
    bool any = false;
    for (int low = 0, high; low < 256; low = high + 1) {
        for (high = low; high < 256 && symbol_set_has(&set, high);)
            high++;
        if (high == low)
            continue;
        text_printf(t->out, "\\x%02x-\\x%02x", (unsigned)low, (unsigned)high - 1);
        any = true;
    }
    text_add(t->out, any ? "]" : "^\\x00-\\xff]");
}

/* --- properties ----------------------------------------------------------------------------- */

static uint32_t categories_of(const char *name, size_t length)
{
    uint32_t mask = 0;
    for (int i = 0; i < UNICODE_CATEGORIES; i++)
        if (strncmp(unicode_categories[i], name, length) == 0)
            mask |= 1u << i;
    return mask;
}

static bool same_name(const char *a, const char *name, size_t length)
{
    for (; length; length--, name++) {
        if (*name == '_' || *name == ' ' || *name == '-')
            continue;
        while (*a == '_')
            a++;
        if ((*a | 32) != (*name | 32))
            return false;
        a++;
    }
    return !*a;
}

static const struct property {
    const char *name, *categories; /* separated by spaces; a prefix means all that start with it */
    uint8_t flags;
} properties[] = {
    {"Letter", "L", 0},
    {"Mark", "M", 0},
    {"Number", "N", 0},
    {"Punctuation", "P", 0},
    {"Symbol", "S", 0},
    {"Separator", "Z", 0},
    {"Other", "C", 0},
    {"LC", "Lu Ll Lt", 0},
    {"Digit", "Nd", 0},
    {"Alphabetic", "", UNICODE_ALPHABETIC},
    {"Alpha", "", UNICODE_ALPHABETIC},
    {"Alnum", "Nd", UNICODE_ALPHABETIC},
    {"Word", "M Nd Pc", UNICODE_ALPHABETIC},
    {"White_Space", "", UNICODE_WHITE_SPACE},
    {"Space", "", UNICODE_WHITE_SPACE},
    {"Uppercase", "", UNICODE_UPPERCASE},
    {"Upper", "", UNICODE_UPPERCASE},
    {"Lowercase", "", UNICODE_LOWERCASE},
    {"Lower", "", UNICODE_LOWERCASE},
    {"Punct", "", UNICODE_PUNCT},
    {SPLIT_DIGITS, "", UNICODE_DIGITS},
    {SPLIT_PUNCTUATION, "", UNICODE_PUNCTUATION},
};

#define NO_RANGE .low = UNICODE_END, .high = UNICODE_END

static bool find_property(const char *name, size_t length, struct symbol_item *item)
{
    *item = (struct symbol_item){NO_RANGE};
    for (size_t i = 0; i < sizeof properties / sizeof *properties; i++) {
        if (!same_name(properties[i].name, name, length))
            continue;
        for (const char *c = properties[i].categories; *c; c += strspn(c, " ")) {
            size_t word = strcspn(c, " ");
            item->categories |= categories_of(c, word);
            c += word;
        }
        item->flags = properties[i].flags;
        return true;
    }
    for (int i = 1; i < UNICODE_SCRIPTS; i++)
        if (same_name(unicode_scripts[i], name, length)) {
            item->script = (uint8_t)i;
            return true;
        }
    char category[3] = {(char)(name[0] & ~32), length > 1 ? (char)(name[1] | 32) : 0, 0};
    if (length >= 1 && length <= 2)
        item->categories = categories_of(category, length);
    return item->categories != 0;
}

#define CASED_FLAGS (UNICODE_UPPERCASE | UNICODE_LOWERCASE)

/* Has some of the categories Lu, Ll and Lt, but not all. */
static bool is_cased(struct symbol_item item)
{
    uint32_t cased = categories_of("Lu", 2) | categories_of("Ll", 2) | categories_of("Lt", 2);
    return (item.categories & cased) && (item.categories & cased) != cased;
}

/* Oniguruma ignores case in sets; outside of them, properties keep it. */
static enum status join_property(struct translation *t, const char *name, size_t length,
                                 bool negated, bool in_set, struct symbol_set *set)
{
    struct symbol_item item;
    struct symbol_set members = {{0}};
    if (!find_property(name, length, &item))
        return FAIL(t->env, CONFIG,
                    "%s: the regex of the pre_tokenizer uses the property '%.*s', which is not "
                    "supported; general categories and common scripts are",
                    t->origin, (int)length, name);
    if (in_set && t->groups[t->depth].caseless && (item.flags & CASED_FLAGS || is_cased(item)))
        return refuse(t, "(?i) with a set of one case", 27);
    TRY(join_item(t, item, &members));
    if (negated)
        set_negate(&members);
    set_join(set, members);
    return STATUS_OK;
}

/* --- escapes -------------------------------------------------------------------------------- */

/* \x41, \x{41} or \u0041, at the backslash. */
static enum status read_code(struct translation *t, uint32_t *code)
{
    char digits[9] = {0};
    bool braces = peek(t, 2) == '{';
    size_t most = braces ? 8 : peek(t, 1) == 'u' ? 4 : 2, length = 0;
    const char *from = t->regex + t->at + 2 + braces;
    while (length < most && from + length < t->regex + t->bytes && from[length] &&
           strchr("0123456789abcdefABCDEF", from[length]))
        length++;
    memcpy(digits, from, length);
    *code = (uint32_t)strtoul(digits, NULL, 16);
    t->at += 2 + length;
    if (!length || *code >= UNICODE_END || (braces && peek(t, 1) != '}'))
        return malformed(t, "not a character code");
    t->at += 2 * (size_t)braces;
    return STATUS_OK;
}

/* The character at `at`, escaped or not. */
static enum status read_literal(struct translation *t, uint32_t *code)
{
    static const char escaped[] = "nrtfvae", meaning[] = "\n\r\t\f\v\a\x1b";
    char letter = peek(t, 1);
    const char *known = letter ? strchr(escaped, letter) : NULL;
    if (t->regex[t->at] != '\\') {
        size_t length = utf8_read((const uint8_t *)t->regex + t->at, t->bytes - t->at, code);
        t->at += length;
        return length ? STATUS_OK : malformed(t, "not UTF-8");
    }
    if (letter == 'x' || letter == 'u')
        return read_code(t, code);
    if (!known && (!letter || (letter & 0x80) || (letter >= '0' && letter <= '9') ||
                   ((letter | 32) >= 'a' && (letter | 32) <= 'z')))
        return refuse(t, t->regex + t->at, letter ? 2 : 1);
    *code = (uint8_t)(known ? meaning[known - escaped] : letter);
    t->at += 2;
    return STATUS_OK;
}

/* A class such as \s or \p{L}: *found says whether there is one; if not,
 * nothing is read. */
static enum status read_class(struct translation *t, bool in_set, struct symbol_set *set,
                              bool *found)
{
    static const struct {
        char letter;
        const char *property;
    } classes[] = {{'s', "Space"}, {'d', "Digit"}, {'w', "Word"}};
    char letter = peek(t, 1), lower = (char)(letter | 32);
    const char *open = t->regex + t->at + 2, *end = t->regex + t->bytes;
    *found = false;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        if (classes[i].letter != lower)
            continue;
        struct symbol_set members = {{0}};
        TRY(join_property(t, classes[i].property, strlen(classes[i].property), false, in_set,
                          &members));
        if (lower == 'w' && !in_set) { /* a quirk of Oniguruma: ² ³ ¹ ¼ ½ ¾, outside of sets */
            TRY(join_range(t, 0xb2, 0xb3, &members));
            TRY(join_range(t, 0xb9, 0xb9, &members));
            TRY(join_range(t, 0xbc, 0xbe, &members));
        }
        if (letter != lower)
            set_negate(&members);
        set_join(set, members);
        t->at += 2;
        *found = true;
        return STATUS_OK;
    }
    if (lower != 'p')
        return STATUS_OK;
    *found = true;
    const char *name = open < end && *open == '{' ? open + 1 : open;
    const char *close = name > open ? memchr(name, '}', (size_t)(end - name)) : open + 1;
    if (!close || close > end)
        return malformed(t, "an unfinished property");
    bool negated = letter == 'P';
    t->at = (size_t)(close - t->regex) + (name > open);
    if (*name == '^') {
        negated = !negated;
        name++;
    }
    return join_property(t, name, (size_t)(close - name), negated, in_set, set);
}

/* --- sets in brackets ----------------------------------------------------------------------- */

/* [:name:] or [:^name:], at the bracket; *found says whether it is one. */
static enum status read_posix(struct translation *t, struct symbol_set *set, bool *found)
{
    const char *name = t->regex + t->at + 2, *end = t->regex + t->bytes, *close = name;
    bool negated = peek(t, 2) == '^';
    *found = false;
    if (peek(t, 1) != ':')
        return STATUS_OK;
    name += negated;
    for (close = name; close + 1 < end && !(close[0] == ':' && close[1] == ']');)
        if ((*close | 32) < 'a' || (*close++ | 32) > 'z')
            return STATUS_OK;
    if (close + 1 >= end)
        return STATUS_OK;
    *found = true;
    t->at = (size_t)(close + 2 - t->regex);
    return join_property(t, name, (size_t)(close - name), negated, true, set);
}

static enum status read_set(struct translation *t, int depth, struct symbol_set *set);

/* One member of a set: a nested set, a class, a character or a range. */
static enum status read_member(struct translation *t, int depth, struct symbol_set *set)
{
    bool found = false;
    uint32_t low, high;
    if (peek(t, 0) == '[') {
        TRY(read_posix(t, set, &found));
        if (found)
            return STATUS_OK;
        struct symbol_set nested = {{0}};
        t->at++;
        TRY(read_set(t, depth + 1, &nested));
        set_join(set, nested);
        return STATUS_OK;
    }
    if (peek(t, 0) == '\\')
        TRY(read_class(t, true, set, &found));
    if (found)
        return STATUS_OK;
    if (starts(t, "\\b")) { /* a backspace, in a set */
        low = '\b';
        t->at += 2;
    } else {
        TRY(read_literal(t, &low));
    }
    high = low;
    if (peek(t, 0) == '-' && peek(t, 1) && peek(t, 1) != ']' && peek(t, 1) != '[' &&
        !starts(t, "-&&")) {
        t->at++;
        TRY(read_literal(t, &high));
    }
    return low <= high ? join_cases(t, low, high, set) : malformed(t, "an empty range");
}

/* From after the opening bracket to after the closing one. */
static enum status read_set(struct translation *t, int depth, struct symbol_set *set)
{
    bool negated = peek(t, 0) == '^', first = true;
    struct symbol_set part = {{0}}, all; /* `all`: of the parts before the last && */
    memset(&all, 0xff, sizeof all);
    if (depth == SETS_MAX)
        return refuse(t, "sets nested too deeply", 22);
    t->at += negated;
    for (; t->at < t->bytes && (first || peek(t, 0) != ']'); first = false) {
        if (starts(t, "&&")) {
            for (int i = 0; i < 4; i++)
                all.bits[i] &= part.bits[i];
            part = (struct symbol_set){{0}};
            t->at += 2;
        } else {
            TRY(read_member(t, depth, &part));
        }
    }
    if (t->at == t->bytes)
        return malformed(t, "an unfinished set");
    t->at++;
    for (int i = 0; i < 4; i++)
        set->bits[i] = all.bits[i] & part.bits[i];
    if (negated)
        set_negate(set);
    return STATUS_OK;
}

/* --- groups and quantifiers ----------------------------------------------------------------- */

static enum status open_group(struct translation *t, const char *becomes, bool caseless)
{
    if (t->depth + 1 == GROUPS_MAX)
        return refuse(t, "groups nested too deeply", 24);
    t->groups[++t->depth] = (struct group){.caseless = caseless, .start = t->out->bytes};
    text_add(t->out, becomes);
    return STATUS_OK;
}

static enum status read_group(struct translation *t)
{
    static const char *const copied[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};
    bool caseless = t->groups[t->depth].caseless;
    for (size_t i = 0; i < sizeof copied / sizeof *copied; i++)
        if (starts(t, copied[i])) {
            t->at += strlen(copied[i]);
            return open_group(t, copied[i], caseless);
        }
    if (peek(t, 1) != '?') {
        t->at++;
        return open_group(t, "(?:", caseless); /* nothing refers to what a group captures */
    }
    bool off = starts(t, "(?-i");
    size_t length = off ? 4 : 3;
    if (!off && !starts(t, "(?i"))
        return refuse(t, t->regex + t->at, t->bytes - t->at < 4 ? t->bytes - t->at : 4);
    if (peek(t, length) == ':') {
        t->at += length + 1;
        return open_group(t, "(?:", !off);
    }
    if (peek(t, length) != ')')
        return refuse(t, t->regex + t->at, length + 1);
    t->at += length + 1; /* (?i) holds to the end of the group around it, alternatives too */
    t->groups[t->depth].caseless = !off;
    t->groups[t->depth].extra++;
    text_add(t->out, "(?:");
    return STATUS_OK;
}

static enum status close_group(struct translation *t)
{
    if (!t->depth)
        return malformed(t, "a closing bracket without an opening one");
    struct group *group = &t->groups[t->depth--];
    for (int i = 0; i <= group->extra; i++)
        text_add(t->out, ")");
    t->atom = group->start;
    t->at++;
    return STATUS_OK;
}

/* The length of {n}, {n,}, {,m} or {n,m}; 0 = something else. */
static size_t quantifier_length(const struct translation *t, bool *fixed)
{
    size_t length = 1, digits = 0;
    *fixed = true;
    for (; peek(t, length) && peek(t, length) != '}'; length++) {
        char c = peek(t, length);
        if (c == ',' && *fixed)
            *fixed = false;
        else if (c >= '0' && c <= '9')
            digits++;
        else
            return 0;
    }
    return peek(t, length) == '}' && digits ? length + 1 : 0;
}

/* Enclose the last atom in a group, which the next quantifier repeats. */
static void wrap_atom(struct translation *t)
{
    size_t tail = t->out->bytes - t->atom;
    text_add(t->out, "(?:)");
    if (t->out->status != STATUS_OK)
        return;
    memmove(t->out->data + t->atom + 3, t->out->data + t->atom, tail);
    memcpy(t->out->data + t->atom, "(?:", 3);
    t->out->data[t->out->bytes - 1] = ')';
}

static enum status read_braces(struct translation *t)
{
    bool fixed;
    size_t length = quantifier_length(t, &fixed);
    if (!length) {
        t->atom = t->out->bytes;
        text_add(t->out, "\\{");
        t->at++;
        return STATUS_OK;
    }
    if (peek(t, 1) == ',') {
        text_add(t->out, "{0");
        text_add_bytes(t->out, t->regex + t->at + 1, length - 1);
    } else {
        text_add_bytes(t->out, t->regex + t->at, length);
    }
    t->at += length;
    char next = peek(t, 0);
    if (next == '+' || next == '*' || next == '{' || (next == '?' && fixed))
        wrap_atom(t);
    return STATUS_OK;
}

/* --- the regex ------------------------------------------------------------------------------ */

/* \b or \B: what \w says about the characters before and after. */
static enum status write_boundary(struct translation *t, bool boundary)
{
    struct translation word = *t;
    struct text set;
    struct symbol_set members = {{0}};
    bool found;
    word.regex = "\\w";
    word.bytes = 2;
    word.at = 0;
    TRY(read_class(&word, false, &members, &found));
    text_init(&set, t->env);
    word.out = &set;
    write_set(&word, members);
    const char *w = text_string(&set);
    t->atom = t->out->bytes;
    text_printf(t->out,
                boundary ? "(?:(?<=%s)(?!%s)|(?<!%s)(?=%s))" : "(?:(?<=%s)(?=%s)|(?<!%s)(?!%s))", w,
                w, w, w);
    enum status st = set.status;
    text_free(&set);
    t->at += 2;
    return st;
}

static enum status read_escape(struct translation *t, bool *done)
{
    struct symbol_set set = {{0}};
    char letter = peek(t, 1);
    *done = true;
    if (letter == 'b' || letter == 'B')
        return write_boundary(t, letter == 'b');
    if (letter && strchr("AzZ", letter)) {
        text_add_bytes(t->out, t->regex + t->at, 2);
        t->at += 2;
        return STATUS_OK;
    }
    TRY(read_class(t, false, &set, done));
    if (*done)
        write_set(t, set);
    return STATUS_OK;
}

static enum status read_atom(struct translation *t)
{
    struct symbol_set set = {{0}};
    char c = t->regex[t->at];
    bool done = false;
    uint32_t code;
    switch (c) {
    case '(': return read_group(t);
    case ')': return close_group(t);
    case '{': return read_braces(t);
    case '[':
        t->at++;
        TRY(read_set(t, 0, &set));
        write_set(t, set);
        return STATUS_OK;
    case '.': t->atom = t->out->bytes; /* fall through */
    case '|':
    case '*':
    case '+':
    case '?':
    case '^':
    case '$':
        text_add_bytes(t->out, &c, 1);
        t->at++;
        return STATUS_OK;
    case '\\': TRY(read_escape(t, &done));
    }
    if (done)
        return STATUS_OK;
    TRY(read_literal(t, &code));
    TRY(join_cases(t, code, code, &set));
    write_set(t, set);
    return STATUS_OK;
}

enum status regex_translate(struct env *env, struct symbols *symbols, bool collecting,
                            const char *regex, size_t bytes, const char *origin, struct text *out)
{
    struct translation t = {.env = env,
                            .symbols = symbols,
                            .collecting = collecting,
                            .regex = regex,
                            .origin = origin,
                            .bytes = bytes,
                            .out = out};
    while (t.at < bytes)
        TRY(read_atom(&t));
    if (t.depth)
        return malformed(&t, "an opening bracket without a closing one");
    for (int i = 0; i < t.groups[0].extra; i++)
        text_add(out, ")");
    return out->status;
}
