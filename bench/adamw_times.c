/* adamw_times -- times updates by AdamW and plain copies for bench/adamw.
 *
 *     adamw_times PARAMETERS THREADS
 *
 * Each line on stdin starts a round, in which every row is called three times; the fastest call
 * counts. Prints a line `SECONDS BYTES NAME` for each row, BYTES being those that a parameter or an
 * element of a copy must move, and then an empty line.
 */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/env.h"
#include "ops/ops.h"

enum { GRAD, PARAM, M, V, ARRAYS };

struct bench {
    struct env env;
    struct device *device;
    struct stream *stream;
    struct ops *ops;
    int64_t count;
    float *arrays[ARRAYS];
    uint16_t *copy;
};

/* Both corrections below 1: the first 165 steps with beta1 = 0.9; one below 1: up to step 16,600
 * with beta2 = 0.999; none. */
static const struct row {
    const char *name;
    bool copies;
    float correction1, correction2;
} rows[] = {
    {"step 10", false, 0.6513216f, 0.00995512f},
    {"step 1000", false, 1, 0.6323046f},
    {"step 100,000", false, 1, 1},
    {"step 10, bf16 copy", true, 0.6513216f, 0.00995512f},
    {"step 1000, bf16 copy", true, 1, 0.6323046f},
    {"step 100,000, bf16 copy", true, 1, 1},
};

/* --- rows ----------------------------------------------------------------------------------- */

static void update(struct bench *b, const struct row *row)
{
    const struct update rule = {.rule = UPDATE_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    const struct step_scalars scalars = {.lr = 1e-4f,
                                         .correction1 = row->correction1,
                                         .correction2 = row->correction2,
                                         .grad_scale = 0.9f};
    const struct update_segment segment = {.count = b->count,
                                           .param = b->arrays[PARAM],
                                           .copy = row->copies ? b->copy : NULL,
                                           .copy_type = DTYPE_BF16,
                                           .grad_type = DTYPE_F32,
                                           .grad = b->arrays[GRAD],
                                           .m = b->arrays[M],
                                           .v = b->arrays[V],
                                           .lr_mul = 1,
                                           .decay = 0.1f};
    ops_update(b->ops, b->stream, &rule, &scalars, &segment, 1);
}

/* Elements of part `index` of `parts` */
static int64_t part_start(const struct bench *b, int index, int parts)
{
    return b->count / parts * index / 16 * 16;
}

/* The C library may choose stores that bypass the caches. */
static void copy_by_library(struct bench *b, const struct row *row)
{
    (void)row;
#pragma omp parallel num_threads(b->env.threads)
    {
        int me = omp_get_thread_num(), all = omp_get_num_threads();
        int64_t from = part_start(b, me, all), to = part_start(b, me + 1, all);
        memcpy(b->arrays[PARAM] + from, b->arrays[GRAD] + from,
               (size_t)(to - from) * sizeof(float));
    }
}

/* One load and one store per vector. The barrier keeps the compiler from calling memcpy. */
static void copy_by_loop(struct bench *b, const struct row *row)
{
    (void)row;
    typedef float vector __attribute__((vector_size(16), aligned(4)));
#pragma omp parallel num_threads(b->env.threads)
    {
        int me = omp_get_thread_num(), all = omp_get_num_threads();
        int64_t from = part_start(b, me, all), to = part_start(b, me + 1, all);
        float *restrict out = b->arrays[PARAM];
        const float *restrict in = b->arrays[GRAD];
        for (int64_t i = from; i < to; i += 16) {
            for (int k = 0; k < 16; k += 4)
                *(vector *)(out + i + k) = *(const vector *)(in + i + k);
            __asm__ volatile("" ::: "memory");
        }
    }
}

/* --- rounds --------------------------------------------------------------------------------- */

enum { CALLS = 3 };
typedef void work_fn(struct bench *b, const struct row *row);

static void time_row(struct bench *b, work_fn *work, const struct row *row, int bytes,
                     const char *name)
{
    double fastest = 1e9;
    for (int i = 0; i < CALLS; i++) {
        double start = clock_seconds();
        work(b, row);
        double seconds = clock_seconds() - start;
        fastest = seconds < fastest ? seconds : fastest;
    }
    printf("%.9f %d %s\n", fastest, bytes, name);
}

static void run_round(struct bench *b)
{
    time_row(b, copy_by_library, NULL, 8, "copy, memcpy");
    time_row(b, copy_by_loop, NULL, 8, "copy, loop");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        time_row(b, update, &rows[i], rows[i].copies ? 30 : 28, rows[i].name);
    printf("\n");
    fflush(stdout);
}

/* Every thread writes its part first, so that its pages are near it. */
static void fill(struct bench *b)
{
#pragma omp parallel for schedule(static) num_threads(b->env.threads)
    for (int64_t i = 0; i < b->count; i++) {
        float x = (float)((uint32_t)i * 2654435761u >> 8) * 0x1p-24f - 0.5f;
        b->arrays[GRAD][i] = 1e-2f * x;
        b->arrays[PARAM][i] = x;
        b->arrays[M][i] = 1e-3f * x;
        b->arrays[V][i] = 1e-5f * (x * x);
        b->copy[i] = 0;
    }
}

static enum status alloc(struct bench *b, const char *name, size_t width, void *at)
{
    return device_alloc(b->device, MEM_OTHER, name, (size_t)b->count * width, at);
}

static enum status run(struct bench *b)
{
    char line[16];
    TRY(device_create(&b->env, "cpu", 0, &b->device));
    TRY(stream_create(b->device, "bench", &b->stream));
    TRY(ops_create(b->device, "cpu", DTYPE_F32, &b->ops));
    for (int a = 0; a < ARRAYS; a++)
        TRY(alloc(b, "array", sizeof(float), &b->arrays[a]));
    TRY(alloc(b, "copy", sizeof(uint16_t), &b->copy));
    fill(b);
    while (fgets(line, sizeof line, stdin))
        run_round(b);
    return STATUS_OK;
}

static void say(void *user, enum log_level level, const char *line)
{
    (void)user, (void)level;
    fprintf(stderr, "adamw_times: %s\n", line);
}

int main(int argc, char **argv)
{
    struct bench b = {.count = argc == 3 ? atoll(argv[1]) : 0};
    int threads = argc == 3 ? atoi(argv[2]) : 0;
    if (b.count < 1 || threads < 1) {
        fprintf(stderr, "usage: adamw_times PARAMETERS THREADS\n");
        return 2;
    }
    if (env_create(&b.env, say, NULL, LOG_WARN, threads) != STATUS_OK)
        return 1;
    return run(&b) != STATUS_OK; /* the end of the process frees everything */
}
