/* tokenizer_words -- counts the words of a text that arrives in parts, in bounded memory.
 *
 * The text is split as it arrives, up to a position that no pre-token crosses, and is not kept;
 * each distinct word is stored once. Only the table of words grows. When it is full, the rarest
 * words are dropped until half of the table is free. While the merges are learnt a word needs some
 * 200 bytes with its symbols and pairs: about 1 GiB for a full table. */
#include "train/tokenizer/tokenizer_train_impl.h"

#define CHUNK_BYTES          ((size_t)1 << 20) /* of text that is split at a time */
#define PRETOKENS_PER_REPORT (1u << 16)

/* --- counting words ------------------------------------------------------------------------- */

static uint64_t word_hash(const struct tokenizer_learner *t, size_t i)
{
    return hash_bytes(t->letters + t->words[i].at, t->words[i].bytes);
}

/* Drop words that were seen `most` times or less. */
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
    if (++t->pretokens % PRETOKENS_PER_REPORT == 0)
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
    if (bytes > t->limits.word_bytes / 2) { /* would not fit even in a table that is half free */
        t->dropped.words++;
        return STATUS_OK;
    }
    if (t->word_count >= t->limits.words || t->symbol_count + bytes > t->limits.word_bytes) {
        /* Drop words until half of the table is free, so that this is rarely needed. */
        size_t words = t->limits.words / 2, word_bytes = t->limits.word_bytes / 2;
        for (int64_t most = 1; t->word_count > words || t->symbol_count > word_bytes; most++) {
            drop_words(t, most);
            t->dropped.most = most > t->dropped.most ? most : t->dropped.most;
        }
        for (at = hash_bytes(pretoken, bytes) & t->word_index.mask; t->word_index.slots[at];)
            at = (at + 1) & t->word_index.mask;
    }
    TRY(add_word(t, pretoken, bytes));
    t->word_index.slots[at] = (uint32_t)t->word_count;
    return STATUS_OK;
}

/* --- the text ------------------------------------------------------------------------------- */

/* GPT-2's split never puts a character and white space after it into one pre-token, and looks ahead
 * only from white space, so the text may be cut between the two. Only the common characters are
 * recognized here; after others the text is not cut. */
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

/* Split the pending text up to the last position where it may be cut; with `all`, to its end. */
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
