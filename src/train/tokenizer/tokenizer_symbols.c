/* tokenizer_symbols -- maps characters to the symbols that the regexes of a splitter see.
 *
 * A regex can tell two characters apart only by the items it names: properties such as \p{L}, and
 * literal characters or ranges. Characters with the same items get the same symbol, a byte. ASCII
 * characters are their own symbols, so ASCII text needs no mapping; the others have 128 .. 255. The
 * regex engine then matches bytes and needs no Unicode tables: those of unicode.h decide.
 */
#include "train/tokenizer/tokenizer_impl.h"

/* The map from code point to symbol: pages of 256, equal pages stored once. */
enum { PAGE = 256, PAGES = UNICODE_END / PAGE };

struct symbols {
    struct env *env; /* borrowed */
    struct symbol_item items[SYMBOL_ITEMS_MAX];
    int item_count;
    uint64_t kinds[128]; /* the items of symbol 128 + i, as bits */
    int kind_count;
    uint16_t page_of[PAGES];
    uint8_t *pages;
    size_t page_count, page_room;
};

enum status symbols_create(struct env *env, struct symbols **symbols)
{
    struct symbols *s;
    TRY(mem_alloc(env, MEM_LOADER, "tokenizer symbols", sizeof *s, &s));
    s->env = env;
    *symbols = s;
    return STATUS_OK;
}

void symbols_destroy(struct symbols *s)
{
    if (!s)
        return;
    mem_free(s->env, s->pages);
    mem_free(s->env, s);
}

int symbols_add(struct symbols *s, struct symbol_item item)
{
    for (int i = 0; i < s->item_count; i++)
        if (memcmp(&s->items[i], &item, sizeof item) == 0)
            return i;
    if (s->item_count == SYMBOL_ITEMS_MAX)
        return -1;
    s->items[s->item_count] = item;
    return s->item_count++;
}

static bool has_item(const struct symbol_item *item, uint32_t code, const struct unicode_run *run)
{
    return (code >= item->low && code <= item->high) || (item->categories >> run->category & 1) ||
           (item->flags & run->flags) || (item->script && item->script == run->script);
}

/* --- building the map ----------------------------------------------------------------------- */

static int kind_symbol(struct symbols *s, uint64_t items)
{
    for (int i = 0; i < s->kind_count; i++)
        if (s->kinds[i] == items)
            return 128 + i;
    if (s->kind_count == 128)
        return -1;
    s->kinds[s->kind_count] = items;
    return 128 + s->kind_count++;
}

/* The first code point after `code` where an item may begin or end. */
static uint32_t next_border(const struct symbols *s, uint32_t code, const struct unicode_run *run)
{
    bool last = run + 1 == unicode_runs + unicode_runs_count;
    uint32_t border = last ? UNICODE_END : run[1].start;
    for (int i = 0; i < s->item_count; i++) {
        const struct symbol_item *item = &s->items[i];
        if (item->low > code && item->low < border)
            border = item->low;
        if (item->high >= code && item->high < border)
            border = item->high + 1;
    }
    return border;
}

static enum status store_page(struct symbols *s, uint32_t number, const uint8_t page[PAGE])
{
    size_t at = s->page_count;
    while (at && memcmp(s->pages + (at - 1) * PAGE, page, PAGE) != 0)
        at--;
    if (!at) {
        if (s->page_count == s->page_room) {
            size_t room = s->page_room ? s->page_room * 2 : 64;
            TRY(mem_grow_array(s->env, MEM_LOADER, "tokenizer symbols", room, PAGE, &s->pages));
            s->page_room = room;
        }
        memcpy(s->pages + s->page_count * PAGE, page, PAGE);
        at = ++s->page_count;
    }
    s->page_of[number] = (uint16_t)(at - 1);
    return STATUS_OK;
}

enum status symbols_finish(struct symbols *s, const char *origin)
{
    const struct unicode_run *run = unicode_runs;
    uint8_t page[PAGE];
    for (uint32_t code = 0, border; code < UNICODE_END; code = border) {
        border = next_border(s, code, run);
        uint64_t items = 0;
        for (int i = 0; i < s->item_count; i++)
            items |= (uint64_t)has_item(&s->items[i], code, run) << i;
        int symbol = border <= 128 ? 0 : kind_symbol(s, items);
        if (symbol < 0)
            return FAIL(s->env, CONFIG,
                        "%s: the regexes of the pre_tokenizer distinguish more than 128 kinds of "
                        "characters, which is not supported",
                        origin);
        for (uint32_t c = code, end; c < border; c = end) { /* up to the end of the page */
            end = (c / PAGE + 1) * PAGE < border ? (c / PAGE + 1) * PAGE : border;
            memset(page + c % PAGE, symbol, end - c);
            for (uint32_t ascii = c; ascii < end && ascii < 128; ascii++)
                page[ascii] = (uint8_t)ascii;
            if (end % PAGE == 0)
                TRY(store_page(s, c / PAGE, page));
        }
        if (run + 1 < unicode_runs + unicode_runs_count && border == run[1].start)
            run++;
    }
    return STATUS_OK;
}

/* --- using it ------------------------------------------------------------------------------- */

struct symbol_set symbols_having(const struct symbols *s, int item)
{
    struct symbol_set set = {{0}};
    const struct unicode_run *run = unicode_runs, *end = run + unicode_runs_count;
    for (uint32_t c = 0; c < 128; c++) {
        while (run + 1 < end && run[1].start <= c)
            run++;
        if (has_item(&s->items[item], c, run))
            symbol_set_add(&set, (int)c);
    }
    for (int i = 0; i < s->kind_count; i++)
        if (s->kinds[i] >> item & 1)
            symbol_set_add(&set, 128 + i);
    return set;
}

size_t symbols_map(const struct symbols *s, const uint8_t *text, size_t bytes, uint8_t *out)
{
    size_t count = 0, length;
    for (size_t at = 0; at < bytes; at += length) {
        uint32_t code = text[at];
        length = code < 0x80 ? 1 : utf8_read(text + at, bytes - at, &code);
        out[count++] = s->pages[(size_t)s->page_of[code / PAGE] * PAGE + code % PAGE];
    }
    return count;
}
