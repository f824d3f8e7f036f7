/* rope -- rotary positions of a model: the frequencies of a head's pairs of columns, and the tables
 * that ops_rope reads.
 *
 * Pair i of the N rotary columns of a head is rotated by position * f(i), f(i) = theta^(-2i/N).
 * Models that were trained on short texts scale the frequencies for longer ones:
 *
 *     linear    f / factor
 *     llama3    high frequencies are kept, low ones divided by the factor, those between blended
 *     yarn      the same over other ranges; cos and sin are multiplied by a factor of attention
 *     dynamic   plain up to the original context, which is the longest that sifr takes
 *     longrope  f / a number for each pair: `shorter` in sequences of up to the original context,
 *               `longer` in longer ones; cos and sin are multiplied, too
 *
 * Layers with a window may have a table of their own, with another theta and plain frequencies
 * (Gemma 3), and some layers none (SmolLM3).
 */
#ifndef MODEL_ROPE_H
#define MODEL_ROPE_H
#include <stdbool.h>
#include <stdint.h>

enum rope_scaling {
    ROPE_PLAIN,
    ROPE_LINEAR,
    ROPE_LLAMA3,
    ROPE_YARN,
    ROPE_DYNAMIC,
    ROPE_LONGROPE,
    ROPE_SCALINGS
};

enum { ROPE_PAIRS = 256 }; /* of a head, at most, in longrope */
struct rope_list {
    int count;
    double values[ROPE_PAIRS];
};

/* What few models have. 0: as usual. */
struct rope_extras {
    double local;      /* theta of the layers with a window; 0: they have the table of the others */
    double part;       /* of a head's columns that are rotated; 0: 1 */
    double fast, slow; /* yarn: turns over the original context from which a frequency is kept, and
                          up to which it is divided; 0: 32 and 1 */
    double attention;  /* yarn, longrope: factor of cos and sin; 0: derived from the factor */
    double mscale, mscale_all;          /* yarn: weights in that derivation; 0: none */
    bool exact;                         /* yarn: the range of pairs is not rounded to whole pairs */
    const char *short_text, *long_text; /* longrope, as keys: "1,1.05,..."; NULL or "": none */
    struct rope_list shorter, longer;   /* longrope: N/2 values each */
};

/* The tables of a model; which of them it has depends on its configuration. */
enum rope_table { ROPE_USUAL, ROPE_LONGER, ROPE_LOCAL, ROPE_TABLES };

struct model_config;
int64_t rope_width(const struct model_config *config); /* N */
bool rope_has(const struct model_config *config, enum rope_table which);
/* table (context, N/2, 2): cos and sin of position * frequency, formed in double. */
void rope_table_fill(const struct model_config *config, enum rope_table which, float *table);

/* What a layer's queries and keys are rotated by. */
struct rope {
    int64_t width;       /* N */
    const float *table;  /* borrowed; (context, N/2, 2); NULL: they are not rotated */
    const float *longer; /* borrowed; for sequences longer than `original`; NULL: the same */
    int64_t original;
};
/* The table for sequences of up to `length` tokens. */
static inline const float *rope_for(const struct rope *rope, int64_t length)
{
    return rope->longer && length > rope->original ? rope->longer : rope->table;
}

#endif
