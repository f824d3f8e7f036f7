/* gpu_attention_times -- causal attention on a GPU in isolation: milliseconds and TFLOP/s of the
 * forward and of the deterministic backward pass of any shapes.
 *
 *     gpu_attention_times bf16|fp16|fp32 SECONDS BxTxHxGxD[xWINDOW] ...
 *
 * B sequences of T tokens, H query heads, G key heads, D columns. Only scores that a query sees
 * count: 4 D operations each in the forward pass, 10 D in the backward pass. SIFR_CUDA_ATTENTION
 * chooses kernels, as in a run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/env.h"
#include "ops/ops_trial.h"

static void say(void *user, enum log_level level, const char *line)
{
    (void)user, (void)level;
    fprintf(stderr, "gpu_attention_times: %s\n", line);
}

static bool read_type(const char *word, enum dtype *type)
{
    *type = strcmp(word, "fp16") == 0   ? DTYPE_F16
            : strcmp(word, "fp32") == 0 ? DTYPE_F32
                                        : DTYPE_BF16;
    return *type != DTYPE_BF16 || strcmp(word, "bf16") == 0;
}

/* Five or six sizes from 1 to 2^20, joined by x; at most 2^40 elements */
static bool read_shape(const char *word, struct attention *a)
{
    long n[6] = {0};
    char *end = NULL;
    for (int i = 0; i < 6 && *word >= '1' && *word <= '9'; i++, word = end + 1) {
        n[i] = strtol(word, &end, 10);
        if (n[i] > 1 << 20 || (*end && *end != 'x'))
            return false;
        if (*end)
            continue;
        *a = (struct attention)OPS_HEADS(n[0], n[1], n[2], n[3], n[4]);
        a->window = n[5];
        return i >= 4 && n[2] % n[3] == 0 &&
               (double)n[0] * (double)n[1] * (double)n[2] * (double)n[4] <= 0x1p40;
    }
    return false;
}

static bool read_seconds(const char *word, double *seconds)
{
    char *end;
    *seconds = strtod(word, &end);
    return end != word && *end == '\0' && *seconds > 0 && *seconds <= 3600;
}

static bool measure(struct ops *ops, const char *word, struct attention a, double seconds)
{
    static const char *const names[] = {"attention", "attention_backward"};
    printf("%-26s", word);
    for (int i = 0; i < 2; i++) {
        struct ops_case c = {.op = names[i], .attention = a};
        struct ops_bench_result r;
        if (ops_bench_run(ops, &c, 1, seconds, &r) != STATUS_OK)
            return false;
        printf(" %9.3f ms %6.1f", 1e3 * r.seconds, 1e-3 * r.gflops);
    }
    printf("\n");
    fflush(stdout);
    return true;
}

int main(int argc, char **argv)
{
    struct env env;
    struct device *device;
    struct ops *ops;
    struct attention a;
    enum dtype type;
    double seconds;
    if (argc < 4 || !read_type(argv[1], &type) || !read_seconds(argv[2], &seconds)) {
        fprintf(stderr,
                "usage: gpu_attention_times bf16|fp16|fp32 SECONDS BxTxHxGxD[xWINDOW] ...\n");
        return 2;
    }
    for (int i = 3; i < argc; i++)
        if (!read_shape(argv[i], &a)) {
            fprintf(
                stderr,
                "gpu_attention_times: '%s' is no shape; use BxTxHxGxD, such as 8x1024x16x16x64\n",
                argv[i]);
            return 2;
        }
    if (env_create(&env, say, NULL, getenv("VERBOSE") ? LOG_DEBUG : LOG_WARN, 1) != STATUS_OK ||
        device_create(&env, "cuda", 0, &device) != STATUS_OK ||
        ops_create(device, "cuda", type, &ops) != STATUS_OK)
        return 1;
    printf("%-26s %12s %6s %12s %6s\n", argv[1], "forward", "TF/s", "backward", "TF/s");
    bool well = true;
    for (int i = 3; i < argc && well; i++)
        well = read_shape(argv[i], &a) && measure(ops, argv[i], a, seconds);
    ops_destroy(ops);
    device_destroy(device);
    env_destroy(&env);
    return well ? 0 : 1;
}
