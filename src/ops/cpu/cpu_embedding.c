/* cpu_embedding -- rows of the token and position tables, and their gradients.
 *
 * The gradient of a table row is the sum of the rows that used it, in row order. One thread clears
 * and sums each chunk of the vocabulary and scans all tokens for it: a few thousand comparisons a
 * chunk, no scratch, no atomics.
 */
#include <string.h>
#include "ops/cpu/cpu_impl.h"

/* Enough for many threads. Frequent tokens cluster in a few chunks, so threads take the next free
 * one */
#define VOCAB_CHUNKS 64

static void add_to(int64_t width, const float *restrict from, float *restrict to)
{
    for (int64_t c = 0; c < width; c++)
        to[c] += from[c];
}

static void copy_row(struct embedding e, const void *wte, int64_t row, float *to)
{
    enum dtype type = e.wte_bf16 ? DTYPE_BF16 : DTYPE_F32;
    const char *from = (const char *)wte + (size_t)(row * e.width) * dtype_bytes(type);
    cpu_cast_chunk(to, DTYPE_F32, from, type, e.width);
}

static void rows_thread(struct embedding e, const int32_t *tokens, const void *wte,
                        const float *wpe, int64_t first, float *out)
{
#pragma omp for schedule(static)
    for (int64_t r = 0; r < e.batch * e.tokens; r++) {
        int64_t at = tokens[r] - e.first_id;
        if (at >= 0 && at < e.vocab)
            copy_row(e, wte, at, out + r * e.width);
        else
            memset(out + r * e.width, 0, (size_t)e.width * sizeof(float));
        if (wpe)
            add_to(e.width, wpe + (first + r % e.tokens) * e.width, out + r * e.width);
    }
}

void cpu_embedding(struct ops *ops, struct stream *stream, struct embedding e,
                   const int32_t *tokens, const void *wte, const void *wpe, struct past past,
                   void *out)
{
    IN_THREADS(cpu_threads(ops, e.batch * e.tokens * e.width),
               rows_thread(e, tokens, wte, wpe, past.count, out));
}

size_t cpu_embedding_scratch(const struct ops *ops, struct embedding e)
{
    return 0;
}

static void token_gradient(struct embedding e, const int32_t *tokens, const float *from,
                           int64_t low, int64_t high, float *dwte)
{
    memset(dwte + low * e.width, 0, (size_t)((high - low) * e.width) * sizeof(float));
    for (int64_t r = 0; r < e.batch * e.tokens; r++) {
        int64_t at = tokens[r] - e.first_id;
        if (at >= low && at < high)
            add_to(e.width, from + r * e.width, dwte + at * e.width);
    }
}

static void position_gradient(struct embedding e, const float *dout, int64_t t, float *row)
{
    if (t >= e.tokens) {
        memset(row, 0, (size_t)e.width * sizeof(float));
        return;
    }
    memcpy(row, dout + t * e.width, (size_t)e.width * sizeof(float));
    for (int64_t b = 1; b < e.batch; b++)
        add_to(e.width, dout + (b * e.tokens + t) * e.width, row);
}

static void gradient_thread(struct embedding e, const int32_t *tokens, const float *dout,
                            float *dwte, float *dwpe, int64_t *next)
{
    int64_t chunk = ceil_div(e.vocab, VOCAB_CHUNKS), chunks = ceil_div(e.vocab, chunk);
    for (int64_t p; dwte && (p = next_chunk(next)) < chunks;)
        token_gradient(e, tokens, dout, p * chunk, min64((p + 1) * chunk, e.vocab), dwte);
#pragma omp for schedule(static)
    for (int64_t t = 0; t < (dwpe ? e.positions : 0); t++)
        position_gradient(e, dout, t, dwpe + t * e.width);
}

void cpu_embedding_backward(struct ops *ops, struct stream *stream, struct embedding e,
                            const int32_t *tokens, const void *dout, void *dwte, void *dwpe,
                            void *scratch)
{
    int64_t next = 0;
    IN_THREADS(cpu_threads(ops, e.vocab * e.width),
               gradient_thread(e, tokens, dout, dwte, dwpe, &next));
}
