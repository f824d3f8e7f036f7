/* tokenizer_train_impl -- the state of a learner, shared by tokenizer_words.c, which counts words,
 * and tokenizer_train.c, which then learns the merges. */
#ifndef TRAIN_TOKENIZER_TRAIN_IMPL_H
#define TRAIN_TOKENIZER_TRAIN_IMPL_H
#include "base/progress.h"
#include "train/tokenizer/tokenizer_impl.h"

struct word {
    size_t at; /* offset of its bytes in `letters` and of its symbols in `symbols` */
    uint32_t bytes;
    uint32_t length; /* symbols; shrinks with every merge */
    int64_t count;
};

struct pair_count {
    int32_t left, right;
    int64_t count;
    uint32_t uses; /* head of the list of words that have the pair: index + 1, 0 = empty */
};

struct pair_use { /* a word that has, or had, a pair */
    uint32_t word;
    uint32_t next; /* index + 1, 0 = last */
};

struct candidate {
    int64_t count;
    uint32_t pair;
};

/* A hash index over `words` or `pairs`: open addressing, slots hold entry + 1, 0 = empty. */
struct index {
    uint32_t *slots;
    size_t mask;
};

struct tokenizer_learner {
    struct env *env; /* borrowed */
    struct tokenizer_limits limits;
    struct splitter *splitter;
    struct split_work *split;
    struct text pending; /* text not yet split */
    size_t scanned;      /* no cut is possible in this many bytes of `pending` */
    struct word *words;
    uint8_t *letters; /* the bytes of all words, in the order of the words */
    struct pair_count *pairs;
    struct pair_use *uses;
    struct candidate *heap;
    int32_t *symbols;      /* of all words */
    uint32_t *token_bytes; /* [256 + merges] */
    struct merge *merges;
    struct index word_index, pair_index;
    size_t word_count, word_room, pair_count, pair_room, use_count, use_room;
    size_t heap_count, heap_room;
    size_t symbol_count, letter_room; /* bytes of all words: used, allocated */
    uint32_t free_use;                /* head of the list of free uses: index + 1, 0 = empty */
    int merge_count, wanted;
    size_t pretokens; /* counted so far */
    struct tokenizer_dropped dropped;
    struct progress_task task;       /* tokens */
    tokenizer_progress_fn *progress; /* may be NULL */
    void *user;
};

/* --- tokenizer_words.c ---------------------------------------------------------------------- */

#define LEARNER_WORDS      ((size_t)4 << 20)
#define LEARNER_WORD_BYTES ((size_t)64 << 20) /* of all words together */

/* End of the text: count the words that are still pending. */
enum status learner_words_end(struct tokenizer_learner *t);

/* --- tokenizer_train.c ---------------------------------------------------------------------- */

enum status learner_report(struct tokenizer_learner *t);

/* Make room in *array for one more than `count` items. */
enum status learner_grow(struct env *env, void *array, size_t count, size_t *room, size_t size);

typedef uint64_t learner_hash_fn(const struct tokenizer_learner *t, size_t i);
/* Insert entries 0 .. count - 1 into an empty index. */
void learner_index_fill(const struct tokenizer_learner *t, struct index *index, size_t count,
                        learner_hash_fn *hash);
/* Grow the index, if needed, so that `count` entries and one more fill at most half of it. */
enum status learner_index_grow(struct tokenizer_learner *t, struct index *index, size_t count,
                               learner_hash_fn *hash);

#endif
