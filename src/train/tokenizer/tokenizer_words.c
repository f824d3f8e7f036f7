/* tokenizer_words -- counts the words of a text that comes in parts, in memory that has a limit.
 *
 * The text is split as it comes, up to a place where no piece goes across, and is not kept: of each
 * distinct word its bytes are, once. What grows is the table of words. When it is full the rarest are
 * dropped, in the order of the text, until half of it is free. With its symbols and places a word takes
 * some 200 bytes while tokens are learnt: a full table about 1 GiB.
 */
#include "train/tokenizer/tokenizer_train_impl.h"

#define CHUNK_BYTES        ((size_t)1 << 20) /* of text that is split at once */
#define PRETOKENS_A_REPORT (1u << 16)

/* --- counting words ------------------------------------------------------------------------- */

static uint64_t word_hash(const struct tokenizer_learner *t, size_t i)
{
    return hash_bytes(t->letters + t->words[i].at, t->words[i].bytes);
}

/* Forget words that were seen `most` times or less. */
static void drop_words(struct tokenizer_learner *t, int64_t most)
{
    size_t kept = 0, bytes = 0;
    for (size_t i = 0; i < t->word_count; i++) {
        struct word word = t->words[i];
        if (word.count <= most)
            continue;
        memmove(t->letters + bytes, t->letters + word.at, word.bytes);
        word.at = bytes;
        bytes += word.bytes;
        t->words[kept++] = word;
    }
    t->dropped.words += (int64_t)(t->word_count - kept);
    t->word_count = kept;
    t->symbol_count = bytes;
    memset(t->word_index.slots, 0, (t->word_index.mask + 1) * sizeof *t->word_index.slots);
    learner_index_fill(t, &t->word_index, kept, word_hash);
}

static bool is_full(const struct tokenizer_learner *t, size_t more)
{
    return t->word_count >= t->limits.words || t->symbol_count + more > t->limits.word_bytes;
}

/* Until half of the table is free, so that this is done seldom. */
static void make_room(struct tokenizer_learner *t)
{
    size_t words = t->limits.words / 2, bytes = t->limits.word_bytes / 2;
    for (int64_t most = 1; t->word_count > words || t->symbol_count > bytes; most++) {
        drop_words(t, most);
        if (most > t->dropped.most)
            t->dropped.most = most;
    }
}

static enum status add_word(struct tokenizer_learner *t, const uint8_t *pretoken, size_t bytes)
{
    if (t->symbol_count + bytes > t->letter_room) {
        size_t room = t->letter_room * 2 > t->symbol_count + bytes ? t->letter_room * 2
                                                                   : t->symbol_count + bytes + 4096;
        TRY(mem_grow_array(t->env, MEM_LOADER, "tokenizer training", room, 1, &t->letters));
        t->letter_room = room;
    }
    memcpy(t->letters + t->symbol_count, pretoken, bytes);
    t->words[t->word_count++] = (struct word){
        .at = t->symbol_count, .bytes = (uint32_t)bytes, .length = (uint32_t)bytes, .count = 1};
    t->symbol_count += bytes;
    return STATUS_OK;
}

static enum status count_word(void *user, const uint8_t *pretoken, size_t bytes)
{
    struct tokenizer_learner *t = user;
    if (++t->pretokens % PRETOKENS_A_REPORT == 0)
        TRY(learner_report(t));
    TRY(learner_index_grow(t, &t->word_index, t->word_count, word_hash));
    TRY(learner_grow(t->env, &t->words, t->word_count, &t->word_room, sizeof *t->words));
    size_t at = hash_bytes(pretoken, bytes) & t->word_index.mask;
    for (; t->word_index.slots[at]; at = (at + 1) & t->word_index.mask) {
        struct word *word = &t->words[t->word_index.slots[at] - 1];
        if (word->bytes == bytes && memcmp(t->letters + word->at, pretoken, bytes) == 0) {
            word->count++;
            return STATUS_OK;
        }
    }
    if (bytes > t->limits.word_bytes / 2) { /* it would never have room */
        t->dropped.words++;
        return STATUS_OK;
    }
    if (is_full(t, bytes)) {
        make_room(t);
        for (at = hash_bytes(pretoken, bytes) & t->word_index.mask; t->word_index.slots[at];)
            at = (at + 1) & t->word_index.mask;
    }
    TRY(add_word(t, pretoken, bytes));
    t->word_index.slots[at] = (uint32_t)t->word_count;
    return STATUS_OK;
}

/* --- the text, as it comes ------------------------------------------------------------------ */

/* GPT-2's split never has a character that is no white space and white space after it in one piece,
 * and looks ahead only from white space: text may be cut between the two. Not every character is
 * known here; those that are not are no place to cut. */
static bool may_cut(const uint8_t *text, size_t i)
{
    if (text[i] != '\n' && text[i] != ' ')
        return false;
    if (i >= 1 && text[i - 1] > ' ' && text[i - 1] < 0x7f)
        return true;
    if (i < 3 || text[i - 3] < 0xe3 || text[i - 3] > 0xef) /* below: spaces of U+1680 .. U+205F */
        return false;
    bool ideographic_space = text[i - 3] == 0xe3 && text[i - 2] == 0x80 && text[i - 1] == 0x80;
    return (text[i - 2] & 0xc0) == 0x80 && (text[i - 1] & 0xc0) == 0x80 && !ideographic_space;
}

/* Split what is pending up to the last place where it may be cut; with `all` to its end. */
static enum status split_pending(struct tokenizer_learner *t, bool all)
{
    struct text *pending = &t->pending;
    const uint8_t *text = (const uint8_t *)pending->data;
    size_t cut = pending->bytes;
    if (!all)
        for (cut = pending->bytes - 1; cut > t->scanned && !may_cut(text, cut);)
            cut--;
    if (!all && cut <= t->scanned) {
        t->scanned = pending->bytes - 1;
        return STATUS_OK;
    }
    TRY(split_text(t->split, text, cut, count_word, t));
    size_t rest = pending->bytes - cut;
    memmove(pending->data, pending->data + cut, rest);
    pending->bytes = rest;
    t->scanned = 0;
    return STATUS_OK;
}

enum status tokenizer_learner_add(struct tokenizer_learner *t, const void *text, size_t bytes)
{
    for (size_t at = 0, part; at < bytes; at += part) {
        part = bytes - at < CHUNK_BYTES ? bytes - at : CHUNK_BYTES;
        text_add_bytes(&t->pending, (const char *)text + at, part);
        TRY(t->pending.status);
        if (t->pending.bytes - t->scanned > CHUNK_BYTES)
            TRY(split_pending(t, false));
    }
    return STATUS_OK;
}

enum status learner_words_end(struct tokenizer_learner *t)
{
    return t->pending.bytes > 0 ? split_pending(t, true) : STATUS_OK;
}
