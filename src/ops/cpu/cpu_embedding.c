/* cpu_embedding -- rows of the token and position tables, and their gradients.
 *
 * The gradient of a table row is the sum of the rows that used it, in row order. Each piece of the vocabulary is cleared
 * and summed by one thread, which looks through all tokens: a few thousand compares a piece, no scratch, no atomics.
 */
#include <string.h>
#include "ops/cpu/cpu_impl.h"

#define VOCAB_PIECES \
    64 /* enough for many threads; common tokens crowd in a few pieces, so threads take them in turn */

static void add_to(int64_t width, const float *restrict from, float *restrict to)
{
    for (int64_t c = 0; c < width; c++)
        to[c] += from[c];
}

void cpu_embedding(struct ops *ops, struct stream *stream, struct embedding e,
                   const int32_t *tokens, const void *wte, const void *wpe, int64_t first,
                   void *out)
{
    (void)stream;
    const float *words = wte, *places = wpe;
    float *to = out;
    int64_t rows = e.batch * e.tokens;
#pragma omp parallel for num_threads(cpu_team(ops, rows *e.width)) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        memcpy(to + r * e.width, words + tokens[r] * e.width, (size_t)e.width * sizeof(float));
        if (places)
            add_to(e.width, places + (first + r % e.tokens) * e.width, to + r * e.width);
    }
}

size_t cpu_embedding_scratch(const struct ops *ops, struct embedding e)
{
    (void)ops;
    (void)e;
    return 0;
}

static void word_gradient(struct embedding e, const int32_t *tokens, const float *from, int64_t low,
                          int64_t high, float *dwte)
{
    memset(dwte + low * e.width, 0, (size_t)((high - low) * e.width) * sizeof(float));
    for (int64_t r = 0; r < e.batch * e.tokens; r++)
        if (tokens[r] >= low && tokens[r] < high)
            add_to(e.width, from + r * e.width, dwte + tokens[r] * e.width);
}

void cpu_embedding_backward(struct ops *ops, struct stream *stream, struct embedding e,
                            const int32_t *tokens, const void *dout, void *dwte, void *dwpe,
                            void *scratch)
{
    (void)stream;
    (void)scratch;
    const float *from = dout;
    float *places = dwpe;
    int64_t piece = ceil_div(e.vocab, VOCAB_PIECES), pieces = ceil_div(e.vocab, piece);
    int64_t used = places ? min64(e.tokens, e.positions) : 0;
#pragma omp parallel num_threads(cpu_team(ops, e.vocab *e.width))
    {
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t p = 0; p < pieces; p++)
            word_gradient(e, tokens, from, p * piece, min64((p + 1) * piece, e.vocab), dwte);
#pragma omp for schedule(static)
        for (int64_t t = 0; t < used; t++) {
            memcpy(places + t * e.width, from + t * e.width, (size_t)e.width * sizeof(float));
            for (int64_t b = 1; b < e.batch; b++)
                add_to(e.width, from + (b * e.tokens + t) * e.width, places + t * e.width);
        }
    }
    if (places && e.positions > used)
        memset(places + used * e.width, 0,
               (size_t)((e.positions - used) * e.width) * sizeof(float));
}
