/* sampling -- picks the next token from logits: greedy, or by temperature among the top k and the
 * top p of the mass.
 *
 * Ids are ordered by logit, larger first, ties by the lower id, so that the same logits and the
 * same random number always give the same token. Only the head of that order is sorted: a heap
 * gives up one id at a time.
 */
#include <math.h>

#include "engine/decoder.h"

static bool before(const float *logits, int32_t a, int32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static void sift_down(const float *logits, int32_t *heap, int64_t count, int64_t i)
{
    int32_t id = heap[i];
    for (int64_t child; (child = 2 * i + 1) < count; i = child) {
        if (child + 1 < count && before(logits, heap[child + 1], heap[child]))
            child++;
        if (!before(logits, heap[child], id))
            break;
        heap[i] = heap[child];
    }
    heap[i] = id;
}

static int32_t greedy(const float *logits, int64_t vocab)
{
    int32_t best = 0;
    for (int32_t id = 1; id < vocab; id++)
        if (logits[id] > logits[best])
            best = id;
    return best;
}

/* The mass of all ids that may be chosen, relative to exp(top). */
static double total_mass(const float *logits, int64_t vocab, double top, double temperature)
{
    double mass = 0.0;
    for (int64_t id = 0; id < vocab; id++)
        mass += exp((logits[id] - top) / temperature);
    return mass;
}

int32_t sampling_pick(const struct sampling *s, const float *logits, int64_t vocab, double random,
                      int32_t *order)
{
    int32_t best = greedy(logits, vocab);
    if (s->temperature <= 0.0)
        return best;
    int64_t left = vocab;
    for (int64_t id = 0; id < vocab; id++)
        order[id] = (int32_t)id;
    for (int64_t i = vocab / 2 - 1; i >= 0; i--)
        sift_down(logits, order, vocab, i);

    /* Take ids off the heap until k of them or the share p is reached; they end up at the end of
     * `order`, best last. */
    int64_t most = s->top_k > 0 && s->top_k < vocab ? s->top_k : vocab;
    double limit = s->top_p < 1.0
                       ? s->top_p * total_mass(logits, vocab, logits[best], s->temperature)
                       : INFINITY;
    double mass = 0.0;
    while (vocab - left < most && mass < limit) {
        int32_t id = order[0];
        order[0] = order[--left];
        sift_down(logits, order, left, 0);
        order[left] = id;
        mass += exp((logits[id] - logits[best]) / s->temperature);
    }
    double target = random * mass, passed = 0.0;
    for (int64_t i = vocab - 1; i >= left; i--) {
        passed += exp((logits[order[i]] - logits[best]) / s->temperature);
        if (passed > target)
            return order[i];
    }
    return order[left];
}
