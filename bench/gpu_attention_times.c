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

static bool read_shape(const char *word, struct attention *a)
{
    long long b, t, h, g, d, window = 0;
    char more;
    int found = sscanf(word, "%lldx%lldx%lldx%lldx%lldx%lld%c", &b, &t, &h, &g, &d, &window, &more);
    if (found < 5 || found > 6 || b < 1 || t < 1 || g < 1 || h < g || h % g != 0 || d < 1)
        return false;
    *a = (struct attention)OPS_HEADS(b, t, h, g, d);
    a->window = window;
    return true;
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
    if (argc < 4 || !read_type(argv[1], &type)) {
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
        well = read_shape(argv[i], &a) && measure(ops, argv[i], a, atof(argv[2]));
    ops_destroy(ops);
    device_destroy(device);
    env_destroy(&env);
    return well ? 0 : 1;
}
