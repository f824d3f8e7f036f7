#include "cli/page/run_series.h"
#include <float.h>
#include <math.h>
#include <string.h>

enum { ROWS = SERIES_ROWS };

/* --- creation ------------------------------------------------------------------------------- */

enum status series_create(struct env *env, const char *const *names, int columns,
                          struct series *series)
{
    enum status st;
    size_t cells = (size_t)columns * ROWS;
    *series = (struct series){.env = env, .names = names, .columns = columns, .stride = 1};
    TRY_OR(undo,
           mem_alloc_array(env, MEM_OTHER, "series", cells, sizeof *series->mean, &series->mean));
    TRY_OR(undo,
           mem_alloc_array(env, MEM_OTHER, "series", cells, sizeof *series->least, &series->least));
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "series", cells, sizeof *series->largest,
                                 &series->largest));
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "series", (size_t)columns, sizeof *series->known,
                                 &series->known));
    return STATUS_OK;
undo:
    series_free(series);
    return st;
}

void series_free(struct series *series)
{
    if (series->env == NULL)
        return;
    mem_free(series->env, series->mean);
    mem_free(series->env, series->least);
    mem_free(series->env, series->largest);
    mem_free(series->env, series->known);
    *series = (struct series){0};
}

void series_clear(struct series *series)
{
    series->rows = 0;
    series->stride = 1;
    series->in_last = 0;
}

/* --- rows ----------------------------------------------------------------------------------- */

static double average(double a, double b)
{
    return isnan(a) ? b : isnan(b) ? a : 0.5 * a + 0.5 * b; /* no overflow */
}

void series_merge(struct series *series)
{
    int64_t half = series->rows / 2;
    bool odd = series->rows % 2 != 0;
    for (int c = 0; c < series->columns; c++) {
        double *mean = series->mean + (size_t)c * ROWS;
        float *least = series->least + (size_t)c * ROWS;
        float *largest = series->largest + (size_t)c * ROWS;
        for (int64_t i = 0; i < half; i++) {
            mean[i] = average(mean[2 * i], mean[2 * i + 1]);
            least[i] = fminf(least[2 * i], least[2 * i + 1]);
            largest[i] = fmaxf(largest[2 * i], largest[2 * i + 1]);
        }
        if (odd) {
            mean[half] = mean[2 * half];
            least[half] = least[2 * half];
            largest[half] = largest[2 * half];
        } else if (half > 0 && !isnan(mean[half - 1])) {
            series->known[c] += (int)series->stride;
        }
    }
    if (!odd)
        series->in_last += series->stride;
    series->rows = half + odd;
    series->stride *= 2;
}

bool series_add(struct series *series, const double *values)
{
    bool full = series->rows == 0 || series->in_last == series->stride;
    bool merged = full && series->rows == ROWS;
    if (merged)
        series_merge(series);
    if (full) {
        series->rows++;
        series->in_last = 0;
        memset(series->known, 0, (size_t)series->columns * sizeof *series->known);
    }
    series->in_last++;
    for (int c = 0; c < series->columns; c++) {
        size_t at = (size_t)c * ROWS + (size_t)(series->rows - 1);
        int *known = &series->known[c];
        double value = values[c];
        if (*known == 0) {
            series->mean[at] = NAN;
            series->least[at] = series->largest[at] = NAN;
        }
        if (!(fabs(value) <= FLT_MAX))
            continue;
        ++*known;
        series->mean[at] =
            *known == 1 ? value : series->mean[at] + (value - series->mean[at]) / *known;
        series->least[at] = fminf(series->least[at], (float)value);
        series->largest[at] = fmaxf(series->largest[at], (float)value);
    }
    return merged;
}

double series_last(const struct series *series, int column)
{
    return series->rows ? series->mean[(size_t)column * ROWS + (size_t)(series->rows - 1)] : NAN;
}

/* --- printing ------------------------------------------------------------------------------- */

enum { CHUNK = 768 }; /* values; a multiple of 3, so that chunks of base64 join without padding */

static void print_floats(struct text *text, const char *key, const double *mean, const float *exact,
                         int64_t rows)
{
    float chunk[CHUNK];
    text_printf(text, "\"%s\":\"", key);
    for (int64_t i = 0; i < rows; i += CHUNK) {
        int64_t count = rows - i < CHUNK ? rows - i : CHUNK;
        for (int64_t j = 0; j < count; j++)
            chunk[j] = exact ? exact[i + j] : (float)mean[i + j];
        text_base64(text, chunk, (size_t)count * sizeof *chunk);
    }
    text_add(text, "\"");
}

static bool is_even(const double *v, int64_t rows)
{
    double d = rows > 1 ? v[1] - v[0] : 0;
    for (int64_t i = 0; i < rows; i++) {
        if (isnan(v[i]) || v[i] != v[0] + (double)i * d)
            return false;
    }
    return true;
}

static bool has_value(const double *v, int64_t rows)
{
    for (int64_t i = 0; i < rows; i++) {
        if (!isnan(v[i]))
            return true;
    }
    return false;
}

static bool has_spread(const float *least, const float *largest, int64_t rows)
{
    for (int64_t i = 0; i < rows; i++) {
        if (least[i] < largest[i])
            return true;
    }
    return false;
}

/* Whether a float holds every value: steps and tokens are whole and may be large. */
static bool fits_float(const double *v, int64_t rows)
{
    for (int64_t i = 0; i < rows; i++) {
        if (v[i] == floor(v[i]) && fabs(v[i]) > 1 << 24)
            return false;
    }
    return true;
}

static void print_column(const struct series *series, int c, int64_t first, struct text *text)
{
    size_t at = (size_t)c * ROWS + (size_t)first;
    const double *mean = series->mean + at;
    int64_t rows = series->rows - first;
    text_printf(text, "\"%s\":{", series->names[c]);
    if (is_even(mean, rows)) {
        double d = rows > 1 ? mean[1] - mean[0] : 0;
        text_add(text, d == 0 ? "\"c\":" : "\"k\":");
        text_json_real(text, mean[0]);
        if (d != 0) {
            text_add(text, ",\"d\":");
            text_json_real(text, d);
        }
    } else if (fits_float(mean, rows)) {
        print_floats(text, "f", mean, NULL, rows);
    } else {
        text_add(text, "\"g\":\"");
        text_base64(text, mean, (size_t)rows * sizeof *mean);
        text_add(text, "\"");
    }
    if (series->stride > 1 && has_spread(series->least + at, series->largest + at, rows)) {
        text_add(text, ",");
        print_floats(text, "l", NULL, series->least + at, rows);
        text_add(text, ",");
        print_floats(text, "h", NULL, series->largest + at, rows);
    }
    text_add(text, "}");
}

void series_print(const struct series *series, int64_t first, struct text *text)
{
    const char *before = "";
    if (first > series->rows)
        first = series->rows;
    text_printf(text, "{\"at\":%lld,\"rows\":%lld,\"stride\":%lld,\"in_last\":%lld,\"columns\":{",
                (long long)first, (long long)series->rows, (long long)series->stride,
                (long long)series->in_last);
    for (int c = 0; c < series->columns; c++) {
        if (!has_value(series->mean + (size_t)c * ROWS + (size_t)first, series->rows - first))
            continue;
        text_add(text, before);
        before = ",";
        print_column(series, c, first, text);
    }
    text_add(text, "}}");
}

static enum status copy(const struct series *from, struct series *to)
{
    size_t cells = (size_t)from->columns * ROWS;
    TRY(series_create(from->env, from->names, from->columns, to));
    memcpy(to->mean, from->mean, cells * sizeof *to->mean);
    memcpy(to->least, from->least, cells * sizeof *to->least);
    memcpy(to->largest, from->largest, cells * sizeof *to->largest);
    memcpy(to->known, from->known, (size_t)from->columns * sizeof *to->known);
    to->rows = from->rows;
    to->stride = from->stride;
    to->in_last = from->in_last;
    return STATUS_OK;
}

enum status series_print_most(const struct series *series, int64_t most, struct text *text)
{
    struct series merged;
    TRY(copy(series, &merged));
    while (merged.rows > 1 && merged.rows * (merged.stride > 1 ? 3 : 1) > most)
        series_merge(&merged);
    series_print(&merged, 0, text);
    series_free(&merged);
    return text->status;
}
