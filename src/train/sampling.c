/* sampling -- two ways to pick a token, with the same result.
 *
 * Ids are ordered by logit, larger first, ties by the lower id, so that the same logits and the same
 * random number always give the same token. pick_exact is the definition: it pops ids from a heap in
 * that order and adds their probabilities (the mass) in that order. With a large vocabulary that takes
 * milliseconds.
 *
 * pick_quick sorts almost nothing. It puts ids into classes by their logits and sums count and mass of
 * each class; only a class in which the choice may fall is sorted. Its masses are added in another
 * order and differ in the last digits. Where such a difference could change a comparison, it returns
 * -1 and pick_exact decides.
 */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "train/generate.h"

/* --- the order ------------------------------------------------------------------------------ */

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

static void make_heap(const float *logits, int32_t *heap, int64_t count)
{
    for (int64_t i = count / 2 - 1; i >= 0; i--)
        sift_down(logits, heap, count, i);
}

/* Pop the first in order; its slot is the last of the heap. */
static int32_t take_first(const float *logits, int32_t *heap, int64_t count)
{
    int32_t id = heap[0];
    heap[0] = heap[count - 1];
    sift_down(logits, heap, count - 1, 0);
    heap[count - 1] = id;
    return id;
}

static double mass_of(const struct sampling *s, float logit, float top)
{
    return exp((logit - (double)top) / s->temperature);
}

static int64_t most_ids(const struct sampling *s, int64_t vocab)
{
    return s->top_k > 0 && s->top_k < vocab ? s->top_k : vocab;
}

/* --- exact -------------------------------------------------------------------------------- */

static int32_t pick_exact(const struct sampling *s, const float *logits, int64_t vocab, float top,
                          double random, int32_t *order)
{
    int64_t left = vocab, most = most_ids(s, vocab);
    double all = 0.0, mass = 0.0;
    for (int64_t id = 0; id < vocab; id++)
        order[id] = (int32_t)id;
    for (int64_t id = 0; s->top_p < 1.0 && id < vocab; id++)
        all += mass_of(s, logits[id], top);
    make_heap(logits, order, vocab);

    /* Pop at least one id, until there are k or their mass reaches p of all; they end up at the end
     * of `order`, the best last. */
    double limit = s->top_p < 1.0 ? s->top_p * all : INFINITY;
    for (; left == vocab || (vocab - left < most && mass < limit); left--)
        mass += mass_of(s, logits[take_first(logits, order, left)], top);
    double target = random * mass, passed = 0.0;
    for (int64_t i = vocab - 1; i >= left; i--) {
        passed += mass_of(s, logits[order[i]], top);
        if (passed > target)
            return order[i];
    }
    return order[left];
}

/* --- quick -------------------------------------------------------------------------------- */

enum { CLASSES = 2048, BATCH = 512 };
static const double FARTHEST = 36; /* temperatures below the top; the last class has the rest */
/* As a fraction of the whole mass: masses here and in pick_exact differ by less. A sum of a million
 * terms in another order, a million ids in the last class, and the error of near_one are together
 * below 5e-10. */
static const double DOUBT = 1e-9;

struct classes {
    const struct sampling *sampling;
    const float *logits;
    int64_t vocab;
    float top, scale;
    double doubt;
    bool counts; /* fill count[] */
    double mass[CLASSES];
    int32_t count[CLASSES];
};

/* Monotone: larger logits are in the same or an earlier class. */
static int32_t class_of(float logit, float top, float scale)
{
    float at = (top - logit) * scale;
    return (int32_t)(at < CLASSES - 1 ? at : CLASSES - 1);
}

/* exp(x) with an error below 2e-11 for |x| <= FARTHEST / (CLASSES - 2). */
static double near_one(double x)
{
    return 1 + x * (1 + x * (1.0 / 2 + x * (1.0 / 6 + x * (1.0 / 24))));
}

/* The mass of an id is exp at the start of its class times a factor near 1. Returns the whole mass.
 */
static double fill_classes(struct classes *c)
{
    double all = 0.0, per_degree = 1 / c->sampling->temperature;
    double width = c->scale > 0 ? per_degree / c->scale : 0.0;
    memset(c->mass, 0, sizeof c->mass);
    memset(c->count, 0, sizeof c->count);
    for (int64_t first = 0; first < c->vocab; first += BATCH) {
        double rest[BATCH];
        int32_t class[BATCH];
        const float *logits = c->logits + first;
        int count = c->vocab - first < BATCH ? (int)(c->vocab - first) : BATCH;
        for (int i = 0; i < count; i++)
            class[i] = class_of(logits[i], c->top, c->scale);
        for (int i = 0; i < count; i++)
            rest[i] = near_one((logits[i] - (double)c->top) * per_degree + class[i] * width);
        for (int i = 0; i < count; i++)
            c->mass[class[i]] += rest[i];
        for (int i = 0; c->counts && i < count; i++)
            c->count[class[i]]++;
    }
    c->mass[CLASSES - 1] = 0.0; /* negligible, and near_one does not hold there */
    double class_mass = 1.0, step = exp(-width);
    for (int i = 0; i < CLASSES - 1; i++, class_mass *= step)
        all += c->mass[i] *= class_mass;
    return all;
}

static int64_t list_class(const struct classes *c, int class, int32_t *ids)
{
    int64_t count = 0;
    for (int64_t first = 0; first < c->vocab; first += BATCH) {
        unsigned char in[BATCH];
        const float *logits = c->logits + first;
        int n = c->vocab - first < BATCH ? (int)(c->vocab - first) : BATCH, any = 0;
        for (int i = 0; i < n; i++) {
            in[i] = class_of(logits[i], c->top, c->scale) == class;
            any |= in[i];
        }
        for (int i = 0; any && i < n; i++)
            if (in[i])
                ids[count++] = (int32_t)(first + i);
    }
    return count;
}

struct prefix { /* of the ids in order */
    int64_t count;
    double mass;
    int32_t id; /* the last one; -1 = in doubt */
};

/* The shortest prefix with `most` ids, if they are counted, or with more mass than `limit`. */
static struct prefix find_prefix(const struct classes *c, int64_t most, double limit, int32_t *ids)
{
    struct prefix w = {0, 0.0, -1};
    for (int k = 0; k < CLASSES; k++) {
        if (w.count + c->count[k] < most && w.mass + c->mass[k] < limit - c->doubt) {
            w.count += c->count[k];
            w.mass += c->mass[k];
            continue;
        }
        int64_t left = list_class(c, k, ids);
        make_heap(c->logits, ids, left);
        for (; left > 0; left--) {
            int32_t id = take_first(c->logits, ids, left);
            bool clear =
                w.mass == 0.0 || w.mass < limit - c->doubt; /* it surely did not end before */
            w.mass += mass_of(c->sampling, c->logits[id], c->top);
            if (++w.count == most || w.mass > limit + c->doubt) {
                w.id = clear ? id : -1;
                return w;
            }
            if (!clear)
                return w;
        }
    }
    return w;
}

/* -1 = in doubt. */
static int32_t pick_quick(const struct sampling *s, const float *logits, int64_t vocab, float top,
                          float bottom, double random, int32_t *order)
{
    struct classes c = {.sampling = s, .logits = logits, .vocab = vocab, .top = top};
    double range = fmin((double)top - bottom, FARTHEST * s->temperature);
    if (top > bottom && !(range > 1e-30 && range < 1e30))
        return -1;
    int64_t most = most_ids(s, vocab);
    c.counts = most < vocab;
    c.scale = top > bottom ? (float)((CLASSES - 2) / range)
                           : 0.0f; /* the last class: only ids beyond the range */
    double all = fill_classes(&c);
    c.doubt = DOUBT * all;
    struct prefix kept = {.mass = all};
    if (s->top_p < 1.0 || c.counts)
        kept = find_prefix(&c, c.counts ? most : INT64_MAX,
                           s->top_p < 1.0 ? s->top_p * all : INFINITY, order);
    if (kept.id < 0)
        return -1;
    return find_prefix(&c, c.counts ? kept.count : INT64_MAX, random * kept.mass, order).id;
}

/* --- the face ------------------------------------------------------------------------------- */

struct extent {
    float top, bottom; /* not valid with has_nan */
    bool has_nan;
};

/* Float bits as integers in the order of the floats (negative ones are inverted), so that compilers
 * vectorize the comparison. It is its own inverse. */
static int32_t ordered_bits(int32_t bits)
{
    return bits ^ (bits >> 31 & INT32_MAX);
}

static float float_of(int32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static struct extent extent_of(const float *logits, int64_t vocab)
{
    int32_t most = INT32_MIN, least = INT32_MAX, widest = 0;
    for (int64_t i = 0; i < vocab; i++) {
        int32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        int32_t key = ordered_bits(bits), size = bits & INT32_MAX;
        most = key > most ? key : most;
        least = key < least ? key : least;
        widest = size > widest ? size : widest;
    }
    return (struct extent){float_of(ordered_bits(most)), float_of(ordered_bits(least)),
                           isnan(float_of(widest))};
}

int32_t sampling_pick(const struct sampling *s, const float *logits, int64_t vocab, double random,
                      int32_t *order)
{
    struct extent e = extent_of(logits, vocab);
    if (e.has_nan || !isfinite(e.top))
        return -1;
    int32_t id = 0;
    if (s->temperature <= 0.0) {
        while (logits[id] != e.top)
            id++;
        return id;
    }
    id = pick_quick(s, logits, vocab, e.top, e.bottom, random, order);
    return id >= 0 ? id : pick_exact(s, logits, vocab, e.top, random, order);
}
