/* tokenizer_bpe -- encodes a pre-token: starts from single bytes, or characters, and merges the
 * adjacent pair of lowest rank, leftmost first, until no pair can be merged.
 *
 * One hash table maps (left, right) to (rank, result). While merging, the symbols of the pre-token
 * are a linked list, and candidate merges are in a heap of rank << 32 | position, so that comparing
 * entries is comparing numbers. An entry is stale if the pair at its position no longer has that
 * rank. The cost is n log n for any pre-token.
 *
 * Most pre-tokens have been seen before, so a cache keeps the ids of short ones. It is an
 * open-addressing table of 8-byte slots (part of the hash, offset of the record) over one block of
 * records (lengths, ids, bytes of the pre-token). When the block is full the cache is emptied. The
 * cache never changes a result.
 */
#include "train/tokenizer/tokenizer_impl.h"

#define CACHE_PRETOKEN_MAX 128 /* longer pre-tokens rarely repeat */
#define CACHE_SLOTS_MIN    4096
#define CACHE_BLOCK_MIN    (256 * 1024)
#define CACHE_BLOCK_MAX    (32 * 1024 * 1024)
#define PRETOKEN_MAX       ((size_t)1 << 30)
#define NO_PAIR            UINT64_MAX
#define NO_RANK            UINT32_MAX

struct pair {
    uint64_t key; /* left << 32 | right */
    uint32_t rank;
    int32_t result;
};

struct bpe {
    struct env *env;           /* borrowed */
    const struct vocab *vocab; /* borrowed */
    struct bpe_rules rules;
    int32_t byte_id[256]; /* -1 if the byte has no token */
    struct pair *pairs;   /* [pair_mask + 1], open addressing */
    size_t pair_mask;
    int64_t merge_count;
    int32_t *words; /* [word_mask + 1], id + 1; NULL unless words or characters are looked up */
    size_t word_mask;
};

struct symbol {
    int32_t id;          /* -1 when merged into the symbol before it */
    uint32_t prev, next; /* `count` marks both ends of the list */
};

struct slot {
    uint32_t tag; /* high half of the hash */
    uint32_t at;  /* offset of the record / 4 + 1; 0 = empty slot */
};

struct record { /* followed by `count` ids, then the bytes of the pre-token */
    uint16_t bytes, count;
};

struct bpe_work {
    struct env *env;       /* borrowed */
    const struct bpe *bpe; /* borrowed */
    struct slot *slots;
    size_t slot_mask, slot_used;
    uint8_t *block;
    size_t block_bytes, block_room;
    struct symbol *symbols; /* [symbol_room] */
    uint64_t *heap;         /* [3 * symbol_room] */
    size_t symbol_room, heap_count;
};

/* --- the tables ----------------------------------------------------------------------------- */

static size_t power_above(size_t count)
{
    size_t power = 16;
    while (power < count)
        power *= 2;
    return power;
}

static uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static struct pair *pair_slot(const struct bpe *bpe, uint64_t key)
{
    size_t at = hash_mix(key, key >> 32) & bpe->pair_mask;
    while (bpe->pairs[at].key != key && bpe->pairs[at].key != NO_PAIR)
        at = (at + 1) & bpe->pair_mask;
    return &bpe->pairs[at];
}

static enum status fill_pairs(struct bpe *bpe, const struct merge *merges, int64_t count)
{
    size_t size = power_above((size_t)count * 2);
    TRY(mem_alloc_array(bpe->env, MEM_LOADER, "tokenizer merges", size, sizeof *bpe->pairs,
                        &bpe->pairs));
    bpe->pair_mask = size - 1;
    for (size_t i = 0; i < size; i++)
        bpe->pairs[i].key = NO_PAIR;
    for (int64_t i = 0; i < count; i++) { /* of two equal pairs the later one wins */
        uint64_t key = pair_key(merges[i].left, merges[i].right);
        *pair_slot(bpe, key) = (struct pair){key, (uint32_t)i, merges[i].result};
    }
    return STATUS_OK;
}

/* The slot of the word, or the empty slot where it belongs. */
static int32_t *word_slot(const struct bpe *bpe, const uint8_t *pretoken, size_t bytes)
{
    size_t at = hash_bytes(pretoken, bytes) & bpe->word_mask;
    while (bpe->words[at] &&
           !token_is(bpe->vocab, &bpe->vocab->tokens[bpe->words[at] - 1], pretoken, bytes))
        at = (at + 1) & bpe->word_mask;
    return &bpe->words[at];
}

/* Special tokens are left out, so that ordinary text never becomes one. */
static enum status fill_words(struct bpe *bpe)
{
    const struct vocab *vocab = bpe->vocab;
    size_t size = power_above((size_t)vocab->count * 2);
    TRY(mem_alloc_array(bpe->env, MEM_LOADER, "tokenizer words", size, sizeof *bpe->words,
                        &bpe->words));
    bpe->word_mask = size - 1;
    for (int32_t id = 0; id < vocab->count; id++) {
        const struct token *token = &vocab->tokens[id];
        if ((token->flags & TOKEN_WORD) && !(token->flags & TOKEN_SPECIAL))
            *word_slot(bpe, vocab->blob + token->at, token->bytes) = id + 1;
    }
    return STATUS_OK;
}

/* The tokens of single bytes: those of the byte alphabet, or <0x00> .. <0xFF>. */
static void fill_bytes(struct bpe *bpe)
{
    const struct vocab *vocab = bpe->vocab;
    memset(bpe->byte_id, 0xff, sizeof bpe->byte_id);
    if (!bpe->rules.byte_level && !bpe->rules.byte_fallback)
        return;
    for (int32_t id = 0; id < vocab->count; id++) {
        const struct token *token = &vocab->tokens[id];
        int byte = bpe->rules.byte_level ? (token->bytes == 1 ? vocab->blob[token->at] : -1)
                                         : fallback_byte(vocab->blob + token->at, token->bytes);
        if ((token->flags & TOKEN_WORD) && byte >= 0)
            bpe->byte_id[byte] = id;
    }
}

enum status bpe_create(struct env *env, const struct vocab *vocab, const struct merge *merges,
                       int64_t merge_count, const struct bpe_rules *rules, struct bpe **bpe)
{
    struct bpe *b;
    enum status st;
    TRY(mem_alloc(env, MEM_LOADER, "tokenizer merges", sizeof *b, &b));
    b->env = env;
    b->vocab = vocab;
    b->merge_count = merge_count;
    b->rules = *rules;
    fill_bytes(b);
    TRY_OR(undo, fill_pairs(b, merges, merge_count));
    if (rules->whole_words || !rules->byte_level)
        TRY_OR(undo, fill_words(b));
    *bpe = b;
    return STATUS_OK;
undo:
    bpe_destroy(b);
    return st;
}

void bpe_destroy(struct bpe *bpe)
{
    if (!bpe)
        return;
    mem_free(bpe->env, bpe->words);
    mem_free(bpe->env, bpe->pairs);
    mem_free(bpe->env, bpe);
}

bool bpe_is_plain(const struct bpe *bpe)
{
    return bpe->merge_count == 0 && bpe->rules.byte_level && !bpe->rules.whole_words;
}

static enum status no_token(struct env *env, uint8_t byte)
{
    return FAIL(env, FORMAT, "the tokenizer's vocabulary has no token for byte 0x%02x", byte);
}

enum status bpe_encode_plain(struct env *env, const struct bpe *bpe, const uint8_t *text,
                             size_t bytes, struct token_list *out)
{
    TRY(token_list_reserve(env, out, (int64_t)bytes));
    for (size_t i = 0; i < bytes; i++) {
        if (bpe->byte_id[text[i]] < 0)
            return no_token(env, text[i]);
        out->ids[out->count++] = bpe->byte_id[text[i]];
    }
    return STATUS_OK;
}

/* --- the cache ------------------------------------------------------------------------------ */

static enum status cache_grow_slots(struct bpe_work *w, size_t size)
{
    struct slot *slots;
    TRY(mem_alloc_array(w->env, MEM_LOADER, "tokenizer cache", size, sizeof *slots, &slots));
    for (size_t i = 0; w->slots && i <= w->slot_mask; i++) {
        if (!w->slots[i].at)
            continue;
        size_t at = w->slots[i].tag & (size - 1);
        while (slots[at].at)
            at = (at + 1) & (size - 1);
        slots[at] = w->slots[i];
    }
    mem_free(w->env, w->slots);
    w->slots = slots;
    w->slot_mask = size - 1;
    return STATUS_OK;
}

static struct record *record_at(const struct bpe_work *w, const struct slot *slot)
{
    return (struct record *)(void *)(w->block + (size_t)(slot->at - 1) * 4);
}

static int32_t *record_ids(struct record *record)
{
    return (int32_t *)(void *)(record + 1);
}

/* The slot of the pre-token, or the empty slot where it belongs. */
static struct slot *cache_find(const struct bpe_work *w, const uint8_t *pretoken, size_t bytes)
{
    uint32_t tag = (uint32_t)(hash_bytes(pretoken, bytes) >> 32);
    for (size_t at = tag & w->slot_mask;; at = (at + 1) & w->slot_mask) {
        struct slot *slot = &w->slots[at];
        if (!slot->at)
            return slot;
        if (slot->tag != tag)
            continue;
        struct record *record = record_at(w, slot);
        if (record->bytes == bytes &&
            memcmp(record_ids(record) + record->count, pretoken, bytes) == 0)
            return slot;
    }
}

static enum status cache_add(struct bpe_work *w, const uint8_t *pretoken, size_t bytes,
                             const int32_t *ids, size_t count)
{
    size_t record_bytes = (sizeof(struct record) + count * 4 + bytes + 3) / 4 * 4;
    /* Make room, by growing the cache or by emptying it. */
    if (w->block_bytes + record_bytes > w->block_room && w->block_room < CACHE_BLOCK_MAX) {
        TRY(mem_resize(w->env, &w->block, w->block_room * 2));
        w->block_room *= 2;
    }
    if (w->block_bytes + record_bytes > w->block_room) {
        memset(w->slots, 0, (w->slot_mask + 1) * sizeof *w->slots);
        w->block_bytes = w->slot_used = 0;
    }
    if (w->slot_used * 2 > w->slot_mask)
        TRY(cache_grow_slots(w, (w->slot_mask + 1) * 2));
    struct slot *slot = cache_find(w, pretoken, bytes);
    slot->tag = (uint32_t)(hash_bytes(pretoken, bytes) >> 32);
    slot->at = (uint32_t)(w->block_bytes / 4 + 1);
    struct record *record = record_at(w, slot);
    *record = (struct record){(uint16_t)bytes, (uint16_t)count};
    memcpy(record_ids(record), ids, count * 4);
    memcpy(record_ids(record) + count, pretoken, bytes);
    w->block_bytes += record_bytes;
    w->slot_used++;
    return STATUS_OK;
}

enum status bpe_work_create(struct env *env, const struct bpe *bpe, struct bpe_work **work)
{
    struct bpe_work *w;
    enum status st;
    TRY(mem_alloc(env, MEM_LOADER, "tokenizer cache", sizeof *w, &w));
    w->env = env;
    w->bpe = bpe;
    TRY_OR(undo, cache_grow_slots(w, CACHE_SLOTS_MIN));
    TRY_OR(undo, mem_alloc(env, MEM_LOADER, "tokenizer cache", CACHE_BLOCK_MIN, &w->block));
    w->block_room = CACHE_BLOCK_MIN;
    *work = w;
    return STATUS_OK;
undo:
    bpe_work_destroy(w);
    return st;
}

void bpe_work_destroy(struct bpe_work *w)
{
    if (!w)
        return;
    mem_free(w->env, w->heap);
    mem_free(w->env, w->symbols);
    mem_free(w->env, w->block);
    mem_free(w->env, w->slots);
    mem_free(w->env, w);
}

/* --- merging -------------------------------------------------------------------------------- */

static uint64_t heap_pop(struct bpe_work *w)
{
    uint64_t top = w->heap[0], last = w->heap[--w->heap_count];
    size_t at = 0, child;
    while ((child = 2 * at + 1) < w->heap_count) {
        if (child + 1 < w->heap_count && w->heap[child + 1] < w->heap[child])
            child++;
        if (w->heap[child] >= last)
            break;
        w->heap[at] = w->heap[child];
        at = child;
    }
    w->heap[at] = last;
    return top;
}

/* The merge of the symbol at `at` and its successor; rank NO_RANK if there is none. */
static struct pair pair_at(const struct bpe_work *w, size_t at, size_t count)
{
    const struct symbol *symbol = &w->symbols[at];
    if (symbol->id >= 0 && symbol->next < count) {
        uint64_t key = pair_key(symbol->id, w->symbols[symbol->next].id);
        const struct pair *pair = pair_slot(w->bpe, key);
        if (pair->key == key)
            return *pair;
    }
    return (struct pair){.rank = NO_RANK};
}

/* Push the merge at `at`, if there is one, onto the heap. */
static void push_pair(struct bpe_work *w, size_t at, size_t count)
{
    struct pair pair = pair_at(w, at, count);
    if (pair.rank == NO_RANK)
        return;
    uint64_t entry = (uint64_t)pair.rank << 32 | at;
    size_t i = w->heap_count++;
    for (; i && w->heap[(i - 1) / 2] > entry; i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = entry;
}

static enum status symbols_reserve(struct bpe_work *w, size_t bytes)
{
    if (bytes > PRETOKEN_MAX)
        return FAIL(w->env, FORMAT,
                    "the tokenizer's regex leaves %zu bytes of text unsplit; the limit is 1 GiB",
                    bytes);
    if (bytes > w->symbol_room) {
        size_t room = power_above(bytes);
        mem_free(w->env, w->heap);
        mem_free(w->env, w->symbols);
        w->heap = NULL;
        w->symbols = NULL;
        w->symbol_room = 0;
        TRY(mem_alloc_array(w->env, MEM_LOADER, "tokenizer symbols", room, sizeof *w->symbols,
                            &w->symbols));
        /* n - 1 pairs at the start, and at most two more for each of n - 1 merges */
        TRY(mem_alloc_array(w->env, MEM_LOADER, "tokenizer symbols", room * 3, sizeof *w->heap,
                            &w->heap));
        w->symbol_room = room;
    }
    return STATUS_OK;
}

static void add_symbol(struct bpe_work *w, size_t *count, int32_t id)
{
    w->symbols[(*count)++].id = id;
}

/* The symbols of characters. An unknown character waits for the next known one, since it may be
 * fused with others; fallback bytes do not end the wait. */
static size_t add_characters(struct bpe_work *w, const uint8_t *pretoken, size_t bytes)
{
    const struct bpe *bpe = w->bpe;
    size_t count = 0, length;
    bool waiting = false;
    uint32_t code;
    for (size_t at = 0; at < bytes; at += length) {
        bool all = bpe->rules.byte_fallback;
        length = utf8_read(pretoken + at, bytes - at, &code);
        int32_t word = length ? *word_slot(bpe, pretoken + at, length) : 0;
        length = length ? length : 1;
        for (size_t i = 0; i < length; i++)
            all &= bpe->byte_id[pretoken[at + i]] >= 0;
        if (word) {
            if (waiting)
                add_symbol(w, &count, bpe->rules.unknown);
            waiting = false;
            add_symbol(w, &count, word - 1);
        } else if (all) {
            for (size_t i = 0; i < length; i++)
                add_symbol(w, &count, bpe->byte_id[pretoken[at + i]]);
        } else if (bpe->rules.unknown >= 0) {
            if (waiting && !bpe->rules.fuse_unknown)
                add_symbol(w, &count, bpe->rules.unknown);
            waiting = true;
        }
    }
    if (waiting)
        add_symbol(w, &count, bpe->rules.unknown);
    return count;
}

static enum status symbols_fill(struct bpe_work *w, const uint8_t *pretoken, size_t bytes,
                                size_t *count)
{
    TRY(symbols_reserve(w, bytes));
    *count = w->bpe->rules.byte_level ? bytes : add_characters(w, pretoken, bytes);
    for (size_t i = 0; i < *count; i++) {
        int32_t id = w->bpe->rules.byte_level ? w->bpe->byte_id[pretoken[i]] : w->symbols[i].id;
        if (id < 0)
            return no_token(w->env, pretoken[i]);
        w->symbols[i] = (struct symbol){id, (uint32_t)(i ? i - 1 : *count), (uint32_t)(i + 1)};
    }
    return STATUS_OK;
}

static enum status merge_pretoken(struct bpe_work *w, const uint8_t *pretoken, size_t bytes,
                                  struct token_list *out)
{
    size_t count;
    TRY(symbols_fill(w, pretoken, bytes, &count));
    w->heap_count = 0;
    for (size_t i = 0; i + 1 < count; i++)
        push_pair(w, i, count);
    while (w->heap_count) {
        uint64_t entry = heap_pop(w);
        size_t at = (uint32_t)entry;
        struct pair pair = pair_at(w, at, count);
        if (pair.rank != entry >> 32)
            continue;
        struct symbol *symbol = &w->symbols[at];
        w->symbols[symbol->next].id = -1;
        symbol->id = pair.result;
        symbol->next = w->symbols[symbol->next].next;
        if (symbol->next < count)
            w->symbols[symbol->next].prev = (uint32_t)at;
        push_pair(w, at, count);
        if (symbol->prev < count)
            push_pair(w, symbol->prev, count);
    }
    for (size_t at = 0; at < count; at = w->symbols[at].next)
        out->ids[out->count++] = w->symbols[at].id;
    return STATUS_OK;
}

static enum status encode_new(struct bpe_work *w, const uint8_t *pretoken, size_t bytes,
                              struct token_list *out)
{
    int32_t word = w->bpe->rules.whole_words ? *word_slot(w->bpe, pretoken, bytes) : 0;
    if (!word)
        return merge_pretoken(w, pretoken, bytes, out);
    out->ids[out->count++] = word - 1;
    return STATUS_OK;
}

enum status bpe_encode(struct bpe_work *w, const uint8_t *pretoken, size_t bytes,
                       struct token_list *out)
{
    TRY(token_list_reserve(w->env, out, (int64_t)bytes)); /* never more ids than bytes */
    if (bytes > CACHE_PRETOKEN_MAX)
        return encode_new(w, pretoken, bytes, out);
    const struct slot *slot = cache_find(w, pretoken, bytes);
    if (slot->at) {
        struct record *record = record_at(w, slot);
        memcpy(out->ids + out->count, record_ids(record), record->count * sizeof(int32_t));
        out->count += record->count;
        return STATUS_OK;
    }
    int64_t before = out->count;
    TRY(encode_new(w, pretoken, bytes, out));
    return cache_add(w, pretoken, bytes, out->ids + before, (size_t)(out->count - before));
}
