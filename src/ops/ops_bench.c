/* ops_bench -- timing with the same descriptions as the tests. A sample has enough calls to be
 * longer than the clock's resolution; the result is the median sample. */
#include <stdlib.h>
#include "base/clock.h"
#include "ops/ops_trial.h"

/* R 1024 rows are a micro-batch of 4 x 256 tokens; widths are those of the 124M model. */
#define MATMUL(r, i, o)   .rows = (r), .linear = {.in = (i), .out = (o)}
#define BLOCK_ATTENTION   .attention = OPS_HEADS(4, 256, 12, 12, 64)
#define GROUPED_ATTENTION .attention = OPS_HEADS(4, 256, 32, 8, 64)
#define EMBEDDING \
    .embedding = {.batch = 4, .tokens = 256, .width = 768, .vocab = 8192, .positions = 256}
#define LAYER      .rows = 1024, .norm = {NORM_LAYER, 768, 1e-5, 0}, .bias = 1, .branch = 1
#define RMS        .rows = 1024, .norm = {NORM_RMS, 768, 1e-5, 0}, .branch = 1
#define ELEMENTS   .count = 1024 * 3072
#define PARAMETERS .count = 4 * 1024 * 1024

const struct ops_bench_case ops_bench_cases[] = {
    {"matmul 2048", {"linear", MATMUL(2048, 2048, 2048)}},
    {"matmul 1024x768x768", {"linear", MATMUL(1024, 768, 768), .bias = true}},
    {"matmul 1024x768x3072", {"linear", MATMUL(1024, 768, 3072), .bias = true}},
    {"matmul 1024x3072x768", {"linear", MATMUL(1024, 3072, 768), .bias = true}},
    {"matmul + gelu", {"linear_gelu", MATMUL(1024, 768, 3072), .bias = true}},
    {"matmul dx", {"linear_dx", MATMUL(1024, 768, 3072)}},
    {"matmul dx + gelu'", {"linear_dx_dgelu", MATMUL(1024, 3072, 768)}},
    {"matmul + swiglu", {"linear_swiglu", MATMUL(1024, 768, 2 * 2048), .act = true}},
    {"matmul dx + swiglu'", {"linear_dx_dswiglu", MATMUL(1024, 2048, 768)}},
    {"matmul dw", {"linear_dw", MATMUL(1024, 768, 3072), .bias = true}},
    {"matmul dw add", {"linear_dw", MATMUL(1024, 768, 3072), .bias = true, .add = true}},
    {"logits 256x768x8192", {"linear", .rows = 256, .linear = {768, 8192, .out_in = true}}},
    {"logits dx", {"linear_dx", .rows = 256, .linear = {768, 8192, .out_in = true}}},
    {"logits dw", {"linear_dw", .rows = 256, .linear = {768, 8192, .out_in = true}}},
    {"logits of 8191",
     {"linear", .rows = 256, .linear = {768, 8191, .out_in = true, .y_stride = 8192}}},
    {"logits of 8191 dx",
     {"linear_dx", .rows = 256, .linear = {768, 8191, .out_in = true, .y_stride = 8192}}},
    {"logits of 8191 dw",
     {"linear_dw", .rows = 256, .linear = {768, 8191, .out_in = true, .y_stride = 8192}}},
    {"decode 1x768x3072", {"linear", MATMUL(1, 768, 3072), .bias = true}},
    {"attention", {"attention", BLOCK_ATTENTION}},
    {"attention backward", {"attention_backward", BLOCK_ATTENTION}},
    {"attention grouped", {"attention", GROUPED_ATTENTION}},
    {"attention grouped backward", {"attention_backward", GROUPED_ATTENTION}},
    {"attention cached",
     {"attention_cached", .attention = OPS_HEADS(1, 1, 12, 12, 64), .past = 1000, .room = 1024}},
    {"rope", {"rope", GROUPED_ATTENTION}},
    {"layer norm", {"add_norm", LAYER}},
    {"layer norm backward", {"norm_backward", LAYER}},
    {"rms norm", {"add_norm", RMS}},
    {"rms norm backward", {"norm_backward", RMS}},
    {"add", {"add", ELEMENTS}},
    {"gelu", {"gelu", ELEMENTS}},
    {"gelu backward", {"gelu_backward", ELEMENTS}},
    {"swiglu", {"swiglu", .rows = 1024, .width = 2048}},
    {"swiglu backward", {"swiglu_backward", .rows = 1024, .width = 2048}},
    {"route", {"route", .rows = 1024, .routing = {.in = 768, .groups = 3, .width = 768}}},
    {"route backward",
     {"route_backward", .rows = 1024, .routing = {.in = 768, .groups = 3, .width = 768}}},
    {"embedding", {"embedding", EMBEDDING}},
    {"embedding backward", {"embedding_backward", EMBEDDING}},
    {"cross entropy", {"cross_entropy", .rows = 1024, .width = 8192}},
    {"cross entropy gradient", {"cross_entropy_gradient", .rows = 1024, .width = 8192}},
    {"cross entropy gradient 8191",
     {"cross_entropy_gradient", .rows = 1024, .width = 8191, .stride = 8192}},
    {"cross entropy part 8191",
     {"cross_entropy_part", .rows = 1024, .width = 8191, .stride = 8192}},
    {"cross entropy join 8191",
     {"cross_entropy_join", .rows = 1024, .width = 8191, .stride = 8192}},
    {"cast f32 to bf16", {"cast", PARAMETERS, .from = DTYPE_F32, .to = DTYPE_BF16}},
    {"cast bf16 to f32", {"cast", PARAMETERS, .from = DTYPE_BF16, .to = DTYPE_F32}},
    {"square sums", {"square_sums", PARAMETERS}},
    {"gate rows", {"gate_rows", PARAMETERS, .width = 768}},
    {"adamw", {"adamw", PARAMETERS, .to = DTYPE_F32}},
    {"adamw bf16", {"adamw", PARAMETERS, .to = DTYPE_BF16}},
    {"adamw bf16 stochastic", {"adamw", PARAMETERS, .to = DTYPE_BF16, .random = true}},
    {"orthogonalize 768x768", {"orthogonalize", .rows = 768, .width = 768}},
    {"orthogonalize 768x3072", {"orthogonalize", .rows = 768, .width = 3072}},
    {"orthogonalize 3072x768", {"orthogonalize", .rows = 3072, .width = 768}},
    {"adamw8", {"adamw8", PARAMETERS, .to = DTYPE_F32}},
    {"adamw8 bf16", {"adamw8", PARAMETERS, .to = DTYPE_BF16}},
    {"sgd", {"sgd", PARAMETERS, .to = DTYPE_F32}},
    {"sgd momentum", {"sgd", PARAMETERS, .to = DTYPE_F32, .momentum = true}},
    {"muon", {"muon", PARAMETERS, .to = DTYPE_F32, .nesterov = true}},
    {"apply", {"apply", PARAMETERS, .to = DTYPE_F32}},
};
const int ops_bench_case_count = sizeof ops_bench_cases / sizeof ops_bench_cases[0];

enum { SAMPLES_MIN = 3, SAMPLES_MAX = 25 };
#define COPIES_BYTES 12e6 /* of all copies together, about */

/* The same case in several copies. */
struct bench {
    struct stream *stream;
    struct ops_trial *trials[OPS_BENCH_LOCATIONS];
    int count, next;
};

/* Seconds of one call, as the mean over `calls` calls. */
static double sample(struct bench *bench, int64_t calls)
{
    double start = clock_seconds();
    for (int64_t i = 0; i < calls; i++) {
        ops_trial_run(bench->trials[bench->next]);
        bench->next = (bench->next + 1) % bench->count;
    }
    stream_sync(bench->stream);
    return (clock_seconds() - start) / (double)calls;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(struct bench *bench, double min_seconds, struct ops_bench_result *result)
{
    const struct ops_call *call = ops_trial_call(bench->trials[0]);
    sample(bench, 1); /* do not count what a back end loads or chooses once */
    double samples[SAMPLES_MAX], first = sample(bench, 1) + 1e-9, spent = 0;
    int64_t calls = 1 + (int64_t)(min_seconds / SAMPLES_MAX / first);
    int count = 0;
    while (count < SAMPLES_MAX && (count < SAMPLES_MIN || spent < min_seconds)) {
        samples[count] = sample(bench, calls);
        spent += samples[count++] * (double)calls;
    }
    qsort(samples, (size_t)count, sizeof samples[0], by_size);
    double seconds = samples[count / 2];
    *result = (struct ops_bench_result){.seconds = seconds,
                                        .gflops = call->flops / seconds * 1e-9,
                                        .gbytes_per_second = ops_call_bytes(call) / seconds * 1e-9,
                                        .calls = calls * count};
}

static enum status make_trials(struct ops *ops, const struct ops_case *c, int copies,
                               struct bench *bench)
{
    double bytes = 0;
    CHECK(1 <= copies && copies <= OPS_BENCH_LOCATIONS);
    do {
        TRY(ops_trial_create(ops, bench->stream, c, 1, &bench->trials[bench->count]));
        bytes += ops_call_bytes(ops_trial_call(bench->trials[bench->count++]));
    } while (bench->count < copies && bytes < COPIES_BYTES);
    return STATUS_OK;
}

enum status ops_bench_run(struct ops *ops, const struct ops_case *c, int copies, double min_seconds,
                          struct ops_bench_result *result)
{
    struct bench bench = {0};
    TRY(stream_create(ops->device, "bench", &bench.stream));
    enum status st = make_trials(ops, c, copies, &bench);
    if (st == STATUS_OK) {
        measure(&bench, min_seconds, result);
        st = stream_sync(bench.stream);
    }
    for (int i = 0; i < bench.count; i++)
        ops_trial_destroy(bench.trials[i]);
    stream_destroy(bench.stream);
    return st;
}
