/* tokenizer_train -- learns a byte-level BPE vocabulary from a text.
 *
 * The text is split and equal pre-tokens are counted first (tokenizer_words.c), so that learning
 * works on distinct words with counts:
 *
 *   words   the symbols of each word (they shrink in place with every merge) and its count
 *   pairs   (left, right) -> its count over all words, and the words that had it when it was new
 *   heap    candidate pairs by count, then by lowest ids
 *
 * A merge visits only the words on its pair's list and adjusts the counts of the neighbouring
 * pairs. Two facts keep this simple. First, once a pair exists its count only falls, because new
 * occurrences appear only during the merge that creates its younger symbol. So the count in a heap
 * entry is exact or too high, never too low, and is corrected when the entry is popped. Second, for
 * the same reason a word is added to a pair's list during one merge only, and comparing with the
 * head of the list is enough to add it once. Words that have lost the pair since are harmless.
 *
 * Learning uses one thread and no randomness: the same text gives the same file. The trainer of
 * Hugging Face `tokenizers` learns the same merges with the same settings (all bytes in the
 * alphabet, minimum frequency 2).
 */
#include "train/tokenizer/tokenizer_train_impl.h"

#define TOKEN_BYTES_MAX 256 /* or a long run of one character would add ever longer tokens */
#define PROGRESS_EVERY  64

enum status learner_report(struct tokenizer_learner *t)
{
    if (t->task.what)
        progress_reach(t->env, &t->task, 257 + (uint64_t)t->merge_count);
    if (!t->progress || t->progress(t->user, 257 + t->merge_count, 257 + t->wanted))
        return STATUS_OK;
    log_warn(t->env, "stopped while training a vocabulary: nothing was saved");
    return STATUS_STOPPED;
}

/* --- growing arrays and indexes ------------------------------------------------------------- */

enum status learner_grow(struct env *env, void *array, size_t count, size_t *room, size_t size)
{
    if (count < *room)
        return STATUS_OK;
    if (count >= UINT32_MAX / 2)
        return FAIL(env, FIT, "the text has too many different words to learn a vocabulary from");
    size_t more = *room ? *room * 2 : 1024;
    TRY(mem_grow_array(env, MEM_LOADER, "tokenizer training", more, size, array));
    *room = more;
    return STATUS_OK;
}

void learner_index_fill(const struct tokenizer_learner *t, struct index *index, size_t count,
                        learner_hash_fn *hash)
{
    for (size_t i = 0; i < count; i++) {
        size_t at = hash(t, i) & index->mask;
        while (index->slots[at])
            at = (at + 1) & index->mask;
        index->slots[at] = (uint32_t)i + 1;
    }
}

enum status learner_index_grow(struct tokenizer_learner *t, struct index *index, size_t count,
                               learner_hash_fn *hash)
{
    uint32_t *slots;
    size_t size = index->slots ? (index->mask + 1) * 2 : 4096;
    if (index->slots && count * 2 <= index->mask)
        return STATUS_OK;
    TRY(mem_alloc_array(t->env, MEM_LOADER, "tokenizer training", size, sizeof *slots, &slots));
    mem_free(t->env, index->slots);
    *index = (struct index){slots, size - 1};
    learner_index_fill(t, index, count, hash);
    return STATUS_OK;
}

/* --- pairs ---------------------------------------------------------------------------------- */

static uint64_t pair_hash(int32_t left, int32_t right)
{
    return hash_mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right, (uint64_t)left);
}

static uint64_t pair_hash_at(const struct tokenizer_learner *t, size_t i)
{
    return pair_hash(t->pairs[i].left, t->pairs[i].right);
}

static enum status add_use(struct tokenizer_learner *t, uint32_t pair, uint32_t word)
{
    uint32_t head = t->pairs[pair].uses, use = t->free_use;
    if (head && t->uses[head - 1].word == word)
        return STATUS_OK;
    if (use) {
        t->free_use = t->uses[use - 1].next;
    } else {
        TRY(learner_grow(t->env, &t->uses, t->use_count, &t->use_room, sizeof *t->uses));
        use = (uint32_t)++t->use_count;
    }
    t->uses[use - 1] = (struct pair_use){word, head};
    t->pairs[pair].uses = use;
    return STATUS_OK;
}

/* The index of the pair, which is added if it is new. */
static enum status find_pair(struct tokenizer_learner *t, int32_t left, int32_t right,
                             uint32_t *pair)
{
    TRY(learner_index_grow(t, &t->pair_index, t->pair_count, pair_hash_at));
    size_t at = pair_hash(left, right) & t->pair_index.mask;
    for (; t->pair_index.slots[at]; at = (at + 1) & t->pair_index.mask) {
        *pair = t->pair_index.slots[at] - 1;
        if (t->pairs[*pair].left == left && t->pairs[*pair].right == right)
            return STATUS_OK;
    }
    TRY(learner_grow(t->env, &t->pairs, t->pair_count, &t->pair_room, sizeof *t->pairs));
    *pair = (uint32_t)t->pair_count++;
    t->pairs[*pair] = (struct pair_count){.left = left, .right = right};
    t->pair_index.slots[at] = *pair + 1;
    return STATUS_OK;
}

static enum status pair_gains(struct tokenizer_learner *t, int32_t left, int32_t right,
                              uint32_t word)
{
    uint32_t pair;
    TRY(find_pair(t, left, right, &pair));
    t->pairs[pair].count += t->words[word].count;
    return add_use(t, pair, word);
}

static enum status pair_loses(struct tokenizer_learner *t, int32_t left, int32_t right,
                              uint32_t word)
{
    uint32_t pair;
    TRY(find_pair(t, left, right, &pair));
    t->pairs[pair].count -= t->words[word].count;
    return STATUS_OK;
}

/* --- candidates ----------------------------------------------------------------------------- */

static bool better(const struct tokenizer_learner *t, struct candidate a, struct candidate b)
{
    const struct pair_count *x = &t->pairs[a.pair], *y = &t->pairs[b.pair];
    if (a.count != b.count)
        return a.count > b.count;
    return x->left != y->left ? x->left < y->left : x->right < y->right;
}

static enum status heap_push(struct tokenizer_learner *t, uint32_t pair)
{
    struct candidate c = {t->pairs[pair].count, pair};
    if (c.count < 2)
        return STATUS_OK;
    TRY(learner_grow(t->env, &t->heap, t->heap_count, &t->heap_room, sizeof *t->heap));
    size_t at = t->heap_count++;
    for (; at && better(t, c, t->heap[(at - 1) / 2]); at = (at - 1) / 2)
        t->heap[at] = t->heap[(at - 1) / 2];
    t->heap[at] = c;
    return STATUS_OK;
}

static struct candidate heap_pop(struct tokenizer_learner *t)
{
    struct candidate top = t->heap[0], last = t->heap[--t->heap_count];
    size_t at = 0, child;
    while ((child = 2 * at + 1) < t->heap_count) {
        if (child + 1 < t->heap_count && better(t, t->heap[child + 1], t->heap[child]))
            child++;
        if (!better(t, t->heap[child], last))
            break;
        t->heap[at] = t->heap[child];
        at = child;
    }
    t->heap[at] = last;
    return top;
}

/* The most frequent pair whose token is short enough; not found if no pair occurs twice. */
static enum status pop_best(struct tokenizer_learner *t, uint32_t *pair, bool *found)
{
    *found = false;
    while (t->heap_count && !*found) {
        struct candidate best = heap_pop(t);
        const struct pair_count *p = &t->pairs[best.pair];
        *pair = best.pair;
        if (best.count != p->count)
            TRY(heap_push(t, best.pair));
        else
            *found = t->token_bytes[p->left] + t->token_bytes[p->right] <= TOKEN_BYTES_MAX;
    }
    return STATUS_OK;
}

/* --- merging -------------------------------------------------------------------------------- */

static enum status fill_pairs(struct tokenizer_learner *t, const uint8_t order[256])
{
    int32_t byte_id[256];
    for (int id = 0; id < 256; id++)
        byte_id[order[id]] = id;
    TRY(mem_alloc_array(t->env, MEM_LOADER, "tokenizer training", t->symbol_count,
                        sizeof *t->symbols, &t->symbols));
    for (size_t w = 0; w < t->word_count; w++) {
        int32_t *symbols = t->symbols + t->words[w].at;
        for (size_t i = 0; i < t->words[w].length; i++) {
            symbols[i] = byte_id[t->letters[t->words[w].at + i]];
            if (i)
                TRY(pair_gains(t, symbols[i - 1], symbols[i], (uint32_t)w));
        }
    }
    for (size_t pair = 0; pair < t->pair_count; pair++)
        TRY(heap_push(t, (uint32_t)pair));
    return STATUS_OK;
}

/* Replace the pair by its token in one word, and adjust the counts of the pairs on both sides. */
static enum status merge_word(struct tokenizer_learner *t, uint32_t w, struct merge m)
{
    struct word *word = &t->words[w];
    int32_t *symbols = t->symbols + word->at;
    uint32_t out = 0;
    for (uint32_t i = 0; i < word->length; out++) {
        if (i + 1 == word->length || symbols[i] != m.left || symbols[i + 1] != m.right) {
            symbols[out] = symbols[i++];
            continue;
        }
        if (out) {
            TRY(pair_loses(t, symbols[out - 1], m.left, w));
            TRY(pair_gains(t, symbols[out - 1], m.result, w));
        }
        if (i + 2 < word->length) {
            TRY(pair_loses(t, m.right, symbols[i + 2], w));
            TRY(pair_gains(t, m.result, symbols[i + 2], w));
        }
        symbols[out] = m.result;
        i += 2;
    }
    word->length = out;
    return STATUS_OK;
}

static enum status merge_pair(struct tokenizer_learner *t, uint32_t pair)
{
    struct merge m = {t->pairs[pair].left, t->pairs[pair].right, 256 + t->merge_count};
    size_t known = t->pair_count;
    uint32_t use = t->pairs[pair].uses;
    while (use) {
        struct pair_use here = t->uses[use - 1];
        t->uses[use - 1].next = t->free_use;
        t->free_use = use;
        TRY(merge_word(t, here.word, m));
        use = here.next;
    }
    t->pairs[pair].count = 0;
    t->pairs[pair].uses = 0;
    for (size_t fresh = known; fresh < t->pair_count; fresh++)
        TRY(heap_push(t, (uint32_t)fresh));
    t->token_bytes[m.result] = t->token_bytes[m.left] + t->token_bytes[m.right];
    t->merges[t->merge_count++] = m;
    return STATUS_OK;
}

static enum status learn(struct tokenizer_learner *t)
{
    int wanted = t->wanted;
    TRY(mem_alloc_array(t->env, MEM_LOADER, "tokenizer training", (size_t)wanted, sizeof *t->merges,
                        &t->merges));
    TRY(mem_alloc_array(t->env, MEM_LOADER, "tokenizer training", 256 + (size_t)wanted,
                        sizeof *t->token_bytes, &t->token_bytes));
    for (int id = 0; id < 256; id++)
        t->token_bytes[id] = 1;
    bool found = true;
    while (t->merge_count < wanted && found) {
        uint32_t pair;
        if (t->merge_count % PROGRESS_EVERY == 0)
            TRY(learner_report(t));
        TRY(pop_best(t, &pair, &found));
        if (found)
            TRY(merge_pair(t, pair));
    }
    return learner_report(t);
}

/* --- the learner ---------------------------------------------------------------------------- */

enum status tokenizer_learner_create(struct env *env, int vocab,
                                     const struct tokenizer_limits *limits,
                                     tokenizer_progress_fn *progress, void *user,
                                     struct tokenizer_learner **learner)
{
    struct tokenizer_learner *t;
    enum status st;
    if (vocab < 257)
        return FAIL(env, CONFIG,
                    "a vocabulary needs at least 257 tokens (256 bytes and end of text), not %d",
                    vocab);
    TRY(mem_alloc(env, MEM_LOADER, "tokenizer training", sizeof *t, &t));
    t->env = env;
    t->limits = limits ? *limits : (struct tokenizer_limits){LEARNER_WORDS, LEARNER_WORD_BYTES};
    t->wanted = vocab - 257;
    t->progress = progress;
    t->user = user;
    text_init(&t->pending, env);
    TRY_OR(undo, splitter_create(env, &t->splitter));
    TRY_OR(undo, splitter_add(t->splitter, SPLIT_GPT2, strlen(SPLIT_GPT2), SPLIT_ISOLATED, false,
                              "training"));
    TRY_OR(undo, splitter_finish(t->splitter, "training"));
    TRY_OR(undo, split_work_create(env, t->splitter, &t->split));
    *learner = t;
    return STATUS_OK;
undo:
    tokenizer_learner_destroy(t);
    return st;
}

void tokenizer_learner_destroy(struct tokenizer_learner *t)
{
    if (!t)
        return;
    struct env *env = t->env;
    text_free(&t->pending);
    split_work_destroy(t->split);
    splitter_destroy(t->splitter);
    mem_free(env, t->words);
    mem_free(env, t->letters);
    mem_free(env, t->pairs);
    mem_free(env, t->uses);
    mem_free(env, t->heap);
    mem_free(env, t->symbols);
    mem_free(env, t->token_bytes);
    mem_free(env, t->merges);
    mem_free(env, t->word_index.slots);
    mem_free(env, t->pair_index.slots);
    mem_free(env, t);
}

struct tokenizer_dropped tokenizer_learner_dropped(const struct tokenizer_learner *t)
{
    return t->dropped;
}

enum status tokenizer_learner_finish(struct tokenizer_learner *t, struct tokenizer **tokenizer)
{
    uint8_t order[256]; /* bytes by their code points in the byte alphabet, as in GPT-2's ids */
    int count = 0;
    TRY(learner_words_end(t));
    for (int code = 0; code < 0x144; code++)
        if (alphabet_byte(code) >= 0)
            order[count++] = (uint8_t)alphabet_byte(code);
    CHECK_EQ(count, 256);
    TRY(fill_pairs(t, order));
    progress_begin(&t->task, "training a tokenizer", "tokens", 257 + (uint64_t)t->wanted);
    enum status st = learn(t);
    progress_end(t->env, &t->task);
    TRY(st);
    return tokenizer_build(t->env, order, t->merges, t->merge_count, "training", tokenizer);
}
