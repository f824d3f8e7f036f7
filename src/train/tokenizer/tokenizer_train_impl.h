/* tokenizer_train_impl -- a vocabulary while it is learnt. For tokenizer_train.c and tokenizer_words.c
 * only: the first merges, the second counts the words before. */
#ifndef TRAIN_TOKENIZER_TRAIN_IMPL_H
#define TRAIN_TOKENIZER_TRAIN_IMPL_H
#include "train/tokenizer/tokenizer_impl.h"

struct word {
    size_t at; /* its bytes in `letters`, and its symbols in `symbols` */
    uint32_t bytes;
    uint32_t length; /* symbols now */
    int64_t count;
};

struct pair_count {
    int32_t left, right;
    int64_t count;
    uint32_t places; /* head of its list of words, + 1; 0: none */
};

struct place {
    uint32_t word;
    uint32_t next; /* + 1; 0: the last */
};

struct candidate {
    int64_t count;
    uint32_t pair;
};

/* An index over `words` or `pairs`: open addressing, entry + 1. */
struct index {
    uint32_t *slots;
    size_t mask;
};

struct tokenizer_learner {
    struct env *env; /* borrowed */
    struct tokenizer_limits limits;
    struct splitter *splitter;
    struct split_work *split;
    struct text pending; /* read, not yet split */
    size_t scanned;      /* of it: there is no place to cut before */
    struct word *words;
    uint8_t *letters; /* of all words, in the order of the words */
    struct pair_count *pairs;
    struct place *places;
    struct candidate *heap;
    int32_t *symbols;      /* of all words */
    uint32_t *token_bytes; /* [256 + merges] */
    struct merge *merges;
    struct index word_index, pair_index;
    size_t word_count, word_room, pair_count, pair_room, place_count, place_room;
    size_t heap_count, heap_room;
    size_t symbol_count, letter_room; /* bytes of all words */
    uint32_t free_place;              /* list of places to use again, + 1 */
    int merge_count, wanted;
    size_t pretokens; /* of the text, counted so far */
    struct tokenizer_dropped dropped;
    tokenizer_progress_fn *progress; /* may be NULL */
    void *user;
};

/* --- tokenizer_words.c ---------------------------------------------------------------------- */

#define LEARNER_WORDS      ((size_t)4 << 20)
#define LEARNER_WORD_BYTES ((size_t)64 << 20) /* of all words together */

/* Count the words of the text that is still pending: there comes no more. */
enum status learner_words_end(struct tokenizer_learner *t);

/* --- tokenizer_train.c ---------------------------------------------------------------------- */

enum status learner_report(const struct tokenizer_learner *t);

/* Room in *array for one more than `count`. */
enum status learner_grow(struct env *env, void *array, size_t count, size_t *room, size_t size);

typedef uint64_t learner_hash_fn(const struct tokenizer_learner *t, size_t i);
/* Enter `count` entries into an empty index; keep one of so many entries at most half full. */
void learner_index_fill(const struct tokenizer_learner *t, struct index *index, size_t count,
                        learner_hash_fn *hash);
enum status learner_index_grow(struct tokenizer_learner *t, struct index *index, size_t count,
                               learner_hash_fn *hash);

#endif
