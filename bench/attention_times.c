/* attention_times -- the FLOP rate of attention, forward and backward, and its share of the rate of
 * a product of 2048^3 on as many threads, by our kernel or by OpenBLAS, whichever is faster.
 *
 *     attention_times THREADS [ROUNDS [WORD]]
 *
 * Medians of 5 or ROUNDS rounds, in which our product, the forward and the backward pass take
 * turns, each for at least 20 ms. WORD: only shapes whose name contains it. OpenBLAS's product is
 * measured before all that: its threads stay awake for a while. Wall clock; with one thread the
 * process's CPU time, which a busy machine changes less. Flops are those of the scores that a query
 * sees: 4 D for each in the forward pass, 10 D in the backward pass.
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/env.h"
#include "ops/cpu/cpu_gemm.h"
#include "times.h"

static const struct shape {
    const char *name;
    struct attention a;
} shapes[] = {
    {"1 x 256, 12 of 64", OPS_HEADS(1, 256, 12, 12, 64)},
    {"4 x 256, 12 of 64", OPS_HEADS(4, 256, 12, 12, 64)},
    {"1 x 1024, 12 of 64", OPS_HEADS(1, 1024, 12, 12, 64)},
    {"4 x 1024, 12 of 64", OPS_HEADS(4, 1024, 12, 12, 64)},
    {"1 x 2048, 12 of 64", OPS_HEADS(1, 2048, 12, 12, 64)},
    {"1 x 4096, 12 of 64", OPS_HEADS(1, 4096, 12, 12, 64)},
    {"1 x 256, 8 of 128", OPS_HEADS(1, 256, 8, 8, 128)},
    {"1 x 1024, 8 of 128", OPS_HEADS(1, 1024, 8, 8, 128)},
    {"1 x 2048, 8 of 128", OPS_HEADS(1, 2048, 8, 8, 128)},
    {"1 x 4096, 8 of 128", OPS_HEADS(1, 4096, 8, 8, 128)},
    {"1 x 2048, 8 of 128, 2 key heads", OPS_HEADS(1, 2048, 8, 2, 128)},
    {"1 x 4096, 12 of 64, window 512",
     {.batch = 1, .tokens = 4096, .heads = 12, .kv_heads = 12, .head_width = 64, .window = 512}},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0], SIDE = 2048, MOST_ROUNDS = 99 };
static const double LEAST_SECONDS = 0.02;

struct bench {
    struct env env;
    struct device *device;
    struct stream *stream;
    struct ops *ops;
    struct attention a;
    float *qkv, *dqkv, *out, *dout, *lse;
    void *scratch;
    struct cpu_product square; /* 2048^3 */
};

static double now(int threads)
{
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void forward(struct bench *b)
{
    ops_attention(b->ops, b->stream, b->a, b->qkv, b->out, b->lse, b->scratch);
}

static void backward(struct bench *b)
{
    ops_attention_backward(b->ops, b->stream, b->a,
                           &(struct attention_backward){.qkv = b->qkv,
                                                        .out = b->out,
                                                        .lse = b->lse,
                                                        .dout = b->dout,
                                                        .dqkv = b->dqkv,
                                                        .scratch = b->scratch});
}

static void our_product(struct bench *b)
{
    cpu_multiply(b->ops, &b->square);
}

static void blas_product(struct bench *b)
{
    const struct cpu_product *p = &b->square;
    openblas_set_num_threads(b->env.threads);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, SIDE, SIDE, SIDE, 1, p->a, SIDE, p->b,
                SIDE, 0, p->c, SIDE);
    openblas_set_num_threads(1);
}

/* Seconds of a call, as the mean of as many as take LEAST_SECONDS */
static double once(struct bench *b, void (*call)(struct bench *))
{
    int threads = b->env.threads, calls = 0;
    double start = now(threads), taken;
    do {
        call(b);
        calls++;
        taken = now(threads) - start;
    } while (taken < LEAST_SECONDS);
    return taken / calls;
}

static void measure(struct bench *b, const struct shape *s, int rounds, double blas)
{
    struct attention a = b->a = s->a;
    int64_t rows = a.batch * a.tokens, width = (a.heads + 2 * a.kv_heads) * a.head_width;
    b->qkv = times_numbers(rows * width, b->env.threads);
    b->dqkv = times_numbers(rows * width, b->env.threads);
    b->out = times_numbers(rows * a.heads * a.head_width, b->env.threads);
    b->dout = times_numbers(rows * a.heads * a.head_width, b->env.threads);
    b->lse = times_numbers(a.batch * a.heads * a.tokens, b->env.threads);
    b->scratch = times_numbers((int64_t)ops_attention_scratch(b->ops, a) / 4 + 16, b->env.threads);
    double products[MOST_ROUNDS], forwards[MOST_ROUNDS], backwards[MOST_ROUNDS];
    for (int round = -1; round < rounds; round++) { /* the first is not counted */
        int at = round < 0 ? 0 : round;
        products[at] = once(b, our_product);
        forwards[at] = once(b, forward);
        backwards[at] = once(b, backward);
    }
    double product = times_median(products, rounds),
           seconds[] = {times_median(forwards, rounds), times_median(backwards, rounds)};
    double pairs = (double)(a.batch * a.heads * a.head_width) * ops_attention_pairs(a, a.tokens);
    double sgemm = 2e-9 * SIDE * SIDE * SIDE / (product < blas ? product : blas);
    double rates[] = {4e-9 * pairs / seconds[0], 10e-9 * pairs / seconds[1],
                      14e-9 * pairs / (seconds[0] + seconds[1])};
    printf("%-32s %7.1f", s->name, sgemm);
    for (int i = 0; i < 3; i++)
        printf(" %7.1f %3.0f %%", rates[i], 100 * rates[i] / sgemm);
    printf("\n");
    fflush(stdout);
    free(b->qkv);
    free(b->dqkv);
    free(b->out);
    free(b->dout);
    free(b->lse);
    free(b->scratch);
}

static void sleep_a_while(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 300 * 1000 * 1000}, NULL);
}

static void say(void *user, enum log_level level, const char *line)
{
    (void)user, (void)level;
    fprintf(stderr, "attention_times: %s\n", line);
}

int main(int argc, char **argv)
{
    int rounds = argc > 2 ? atoi(argv[2]) : 5;
    rounds = rounds < 1 ? 1 : rounds > MOST_ROUNDS ? MOST_ROUNDS : rounds;
    double seconds[MOST_ROUNDS];
    const char *word = argc > 3 ? argv[3] : "";
    struct bench b = {0};
    if (env_create(&b.env, say, NULL, LOG_WARN, argc > 1 ? atoi(argv[1]) : 1) != STATUS_OK ||
        device_create(&b.env, "cpu", 0, &b.device) != STATUS_OK ||
        stream_create(b.device, "bench", &b.stream) != STATUS_OK ||
        ops_create(b.device, "cpu", DTYPE_F32, &b.ops) != STATUS_OK)
        return 1;
    float *x = times_numbers(SIDE * SIDE, b.env.threads),
          *y = times_numbers(SIDE * SIDE, b.env.threads),
          *z = times_numbers(SIDE * SIDE, b.env.threads);
    b.square = (struct cpu_product){.m = SIDE, .n = SIDE, .k = SIDE, .a = x, .b = y, .c = z};
    for (int i = -1; i < rounds; i++)
        seconds[i < 0 ? 0 : i] = once(&b, blas_product);
    double blas = times_median(seconds, rounds);
    sleep_a_while();
    printf("%d threads, %s, OpenBLAS %s %.1f GFLOP/s\n%-32s %7s %13s %13s %13s\n", b.env.threads,
           cpu_kernel() ? cpu_kernel()->name : "OpenBLAS", openblas_get_corename(),
           2e-9 * SIDE * SIDE * SIDE / blas, "GFLOP/s", "2048^3", "forward", "backward", "both");
    for (int s = 0; s < SHAPES; s++)
        if (strstr(shapes[s].name, word))
            measure(&b, &shapes[s], rounds, blas);
    free(x);
    free(y);
    free(z);
    ops_destroy(b.ops);
    stream_destroy(b.stream);
    device_destroy(b.device);
    env_destroy(&b.env);
    return 0;
}
