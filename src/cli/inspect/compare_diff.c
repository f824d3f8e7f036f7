/* compare_diff -- losses as bits, medians of times, and keys of configurations. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "cli/inspect/compare.h"

enum { FEWEST_STEPS = 3 }; /* for a median */

/* --- losses --------------------------------------------------------------------------------- */

/* Doubles as integers in their order: neighbours differ by one. */
static int64_t place_of(double x)
{
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits < 0 ? INT64_MIN - bits : bits;
}

uint64_t compare_ulps(double a, double b)
{
    int64_t x = place_of(a), y = place_of(b);
    return x > y ? (uint64_t)x - (uint64_t)y : (uint64_t)y - (uint64_t)x;
}

static bool same_bits(double a, double b)
{
    return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0;
}

void compare_losses(const struct compare_run *a, const struct compare_run *b,
                    struct compare_losses *out)
{
    *out = (struct compare_losses){0};
    for (int64_t i = 0, k = 0; i < a->count && k < b->count;) {
        const struct compare_step *x = &a->steps[i], *y = &b->steps[k];
        i += x->step <= y->step;
        k += y->step <= x->step;
        if (x->step != y->step)
            continue;
        out->first_common = out->common++ == 0 ? x->step : out->first_common;
        out->last_common = x->step;
        if (same_bits(x->loss, y->loss))
            continue;
        if (out->differing++ == 0) {
            out->first = x->step;
            out->a = x->loss;
            out->b = y->loss;
            out->ulps = isfinite(x->loss) && isfinite(y->loss) ? compare_ulps(x->loss, y->loss) : 0;
        }
        if (fabs(x->loss - y->loss) > out->largest) {
            out->largest = fabs(x->loss - y->loss);
            out->largest_step = x->step;
        }
    }
}

/* --- times ---------------------------------------------------------------------------------- */

static bool has_step(const struct compare_run *run, int64_t step)
{
    int64_t low = 0, high = run->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (run->steps[middle].step < step)
            low = middle + 1;
        else
            high = middle;
    }
    return low < run->count && low > 0 && run->steps[low].step == step; /* not its first */
}

static bool all_have(const struct compare_run *runs, int count, int64_t step)
{
    bool have = true;
    for (int r = 0; r < count && have; r++)
        have = has_step(&runs[r], step);
    return have;
}

static int compare_reals(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double known(double x)
{
    return isfinite(x) ? x : 0;
}

/* What is taken from a step. */
enum part { SECONDS, TOKENS, MFU, WAITED, HIDDEN, TENSOR, STALLED, OTHER, REST, PARTS };

static double part_of(const struct compare_step *s, enum part part)
{
    double waited = known(s->waited), tensor = known(s->tensor_waited), stalled = known(s->stalled);
    switch (part) {
    case SECONDS: return s->seconds;
    case TOKENS: return s->tokens_per_second;
    case MFU: return s->mfu;
    case WAITED: return waited;
    case HIDDEN: return s->in_flight > 0 ? fmax(0, 1 - waited / s->in_flight) : (double)NAN;
    case TENSOR: return tensor;
    case STALLED: return stalled;
    case OTHER: return fmax(0, waited - tensor - stalled);
    default: return s->seconds - waited;
    }
}

/* The median over the steps of `run` that are chosen; NAN if it has none. `room` has run->count
 * values. */
static double median(const struct compare_run *run, const bool *chosen, enum part part,
                     double *room)
{
    size_t n = 0;
    for (int64_t i = 0; i < run->count; i++) {
        double value = part_of(&run->steps[i], part);
        if (chosen[i] && isfinite(value))
            room[n++] = value;
    }
    if (n == 0)
        return NAN;
    qsort(room, n, sizeof *room, compare_reals);
    return n % 2 ? room[n / 2] : (room[n / 2 - 1] + room[n / 2]) / 2;
}

enum status compare_time(const struct compare_run *runs, int count, int of, bool *common,
                         struct compare_time *out)
{
    const struct compare_run *run = &runs[of];
    double *room,
        *targets[PARTS] = {
            &out->seconds, &out->tokens_per_second, &out->mfu,   &out->waited, &out->hidden,
            &out->tensor,  &out->stalled,           &out->other, &out->rest};
    bool *chosen;
    enum status st;
    *out = (struct compare_time){.seconds = NAN};
    size_t size = (size_t)(run->count > 0 ? run->count : 1);
    TRY(mem_alloc_array(run->env, MEM_OTHER, "times", size, sizeof *room, &room));
    TRY_OR(undo, mem_alloc_array(run->env, MEM_OTHER, "times", size, sizeof *chosen, &chosen));
    for (int64_t i = 0; i < run->count; i++)
        out->count += chosen[i] = all_have(runs, count, run->steps[i].step);
    *common = out->count >= FEWEST_STEPS;
    if (!*common) {
        out->count = run->count > FEWEST_STEPS ? run->count - 1 : run->count;
        for (int64_t i = 0; i < run->count; i++)
            chosen[i] = i >= run->count - out->count;
    }
    for (int p = 0; p < PARTS; p++)
        *targets[p] = median(run, chosen, (enum part)p, room);
    mem_free(run->env, chosen);
undo:
    mem_free(run->env, room);
    return st;
}

/* --- configurations ------------------------------------------------------------------------- */

/* The value of a key in lines of "key: value"; NULL: no line has the key. */
static const char *value_in(const char *lines, const char *key, size_t key_bytes, size_t *bytes)
{
    for (const char *s = lines; *s;) {
        size_t length = strcspn(s, "\n");
        if (length > key_bytes && s[key_bytes] == ':' && memcmp(s, key, key_bytes) == 0) {
            size_t skip = key_bytes + 1 + (s[key_bytes + 1] == ' ');
            *bytes = length > skip ? length - skip : 0;
            return s + skip;
        }
        s += length + (s[length] == '\n');
    }
    return NULL;
}

/* Tabs separate the fields. */
static void add_field(struct text *out, const char *field, size_t bytes)
{
    for (size_t done = 0, part; done < bytes; done += part + 1) {
        const char *tab = memchr(field + done, '\t', bytes - done);
        part = tab ? (size_t)(tab - field) - done : bytes - done;
        text_add_bytes(out, field + done, part);
        if (tab)
            text_add(out, " ");
    }
}

static void add_key(const struct compare_run *runs, int count, const char *key, size_t key_bytes,
                    struct text *out)
{
    const char *first = NULL;
    size_t first_bytes = 0;
    bool differs = false;
    for (int r = 0; r < count; r++) {
        size_t bytes = 0;
        const char *value = value_in(text_string(&runs[r].config), key, key_bytes, &bytes);
        if (r == 0) {
            first = value;
            first_bytes = bytes;
        }
        differs = differs || !value != !first ||
                  (value && (bytes != first_bytes || memcmp(value, first, bytes) != 0));
    }
    if (!differs)
        return;
    add_field(out, key, key_bytes);
    for (int r = 0; r < count; r++) {
        size_t bytes = 0;
        const char *value = value_in(text_string(&runs[r].config), key, key_bytes, &bytes);
        text_add(out, "\t");
        add_field(out, value ? value : "-", value ? bytes : 1);
    }
    text_add(out, "\n");
}

enum status compare_config(const struct compare_run *runs, int count, struct text *out)
{
    for (int r = 0; r < count; r++) {
        for (const char *s = text_string(&runs[r].config); *s;) {
            size_t length = strcspn(s, "\n"), key = strcspn(s, ":\n"), bytes;
            bool before = false; /* an earlier run has the key: it was added with that run */
            for (int k = 0; k < r && !before; k++)
                before = value_in(text_string(&runs[k].config), s, key, &bytes) != NULL;
            if (!before)
                add_key(runs, count, s, key, out);
            s += length + (s[length] == '\n');
        }
    }
    return out->status;
}
