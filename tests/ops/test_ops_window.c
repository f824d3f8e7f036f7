/* test_ops_window -- attention with a window, a scale and a cap against its definition, written out
 * here: the reference and its gradient could agree on a wrong window. Decoding reads the rows of
 * the window only; with a window of 1 attention copies the values and has no gradient in queries
 * and keys. */
#include <math.h>
#include "ops/op_rig.h"

enum { T = 23, H = 4, G = 2, D = 10, WIDTH = (H + 2 * G) * D };

static struct attention shape_of(int64_t tokens, int64_t window, double scale, double cap)
{
    struct attention a = OPS_HEADS(1, tokens, H, G, D);
    a.window = window;
    a.scale = scale;
    a.cap = cap;
    return a;
}

static double score(struct attention a, const float *qkv, int64_t t, int64_t h, int64_t j)
{
    double sum = 0, scale = a.scale > 0 ? a.scale : 1 / sqrt(D);
    for (int64_t d = 0; d < D; d++)
        sum +=
            (double)qkv[t * WIDTH + h * D + d] * (double)qkv[j * WIDTH + (H + h / (H / G)) * D + d];
    return a.cap > 0 ? a.cap * tanh(scale * sum / a.cap) : scale * sum;
}

/* Element d of the output of query t of head h. */
static double expected(struct attention a, const float *qkv, int64_t t, int64_t h, int64_t d)
{
    double sum = 0, weights = 0;
    for (int64_t j = 0; j <= t; j++) {
        if (a.window > 0 && t - j >= a.window)
            continue;
        double weight = exp(score(a, qkv, t, h, j));
        weights += weight;
        sum += weight * (double)qkv[j * WIDTH + (H + G + h / (H / G)) * D + d];
    }
    return sum / weights;
}

static const struct {
    int64_t window;
    double scale, cap;
} forms[] = {{0, 0, 0},  {1, 0, 0},  {2, 0, 0},      {7, 0.5, 0},   {22, 0, 0},
             {23, 0, 0}, {99, 0, 2}, {7, 0.5, 1.25}, {0, 0.25, 0.5}};
enum { FORMS = sizeof forms / sizeof forms[0] };

static void test_definition(void **state)
{
    struct rig rig;
    rig_open(&rig, *state, DTYPE_F32, 2);
    for (int f = 0; f < FORMS; f++) {
        struct attention a = shape_of(T, forms[f].window, forms[f].scale, forms[f].cap);
        struct ops_case shape = {"attention", .attention = a};
        struct ops_trial *trial = rig_trial(&rig, &shape);
        const struct ops_call *call = ops_trial_call(trial);
        ops_trial_run(trial);
        const float *qkv = ops_find_tensor(call, "qkv")->data;
        const float *out = ops_find_tensor(call, "out")->data;
        for (int64_t i = 0; i < T * H * D; i++)
            if (!(fabs((double)out[i] - expected(a, qkv, i / D / H, i / D % H, i % D)) < 1e-5))
                fail_msg("form %d: element %d is %g", f, (int)i, (double)out[i]);
        ops_trial_destroy(trial);
    }
    rig_close(&rig);
}

/* Rows before the window are NaN when a chunk is decoded. */
static void test_decoding(void **state)
{
    static const int64_t chunks[] = {9, 1, 1, 5, 7};
    struct rig rig;
    rig_open(&rig, *state, DTYPE_F32, 2);
    for (int f = 0; f < FORMS; f++) {
        float cache_k[T * G * D], cache_v[T * G * D], out[T * H * D];
        struct attention whole = shape_of(T, forms[f].window, forms[f].scale, forms[f].cap);
        struct ops_case shape = {"attention", .attention = whole};
        struct ops_trial *trial = rig_trial(&rig, &shape);
        const struct ops_call *call = ops_trial_call(trial);
        ops_trial_run(trial);
        const float *qkv = ops_find_tensor(call, "qkv")->data;
        const float *wanted = ops_find_tensor(call, "out")->data;
        for (int64_t i = 0, past = 0; i < 5; past += chunks[i++]) {
            struct attention chunk = whole;
            chunk.tokens = chunks[i];
            for (int64_t row = 0; whole.window > 0 && row <= past - whole.window; row++)
                for (int64_t d = 0; d < G * D; d++)
                    cache_k[row * G * D + d] = cache_v[row * G * D + d] = NAN;
            ops_attention_cached(
                rig.ops, rig.stream, chunk,
                &(struct attention_cached){.past = (struct past){past, NULL},
                                           .room = T,
                                           .qkv = qkv + past * WIDTH,
                                           .cache_k = cache_k,
                                           .cache_v = cache_v,
                                           .out = out + past * H * D,
                                           .scratch = ops_find_tensor(call, "scratch")->data});
        }
        for (int i = 0; i < T * H * D; i++)
            if (!(fabsf(out[i] - wanted[i]) < 3e-6f))
                fail_msg("form %d: element %d is %g, not %g", f, i, (double)out[i],
                         (double)wanted[i]);
        ops_trial_destroy(trial);
    }
    rig_close(&rig);
}

static void test_window_of_one(void **state)
{
    struct rig rig;
    rig_open(&rig, *state, DTYPE_F32, 2);
    struct ops_case shape = {"attention_backward", .attention = shape_of(T, 1, 0, 0)};
    struct ops_trial *trial = rig_trial(&rig, &shape);
    const struct ops_call *call = ops_trial_call(trial);
    ops_trial_run(trial);
    const float *qkv = ops_find_tensor(call, "qkv")->data;
    const float *out = ops_find_tensor(call, "out")->data;
    const float *dqkv = ops_find_tensor(call, "dqkv")->data;
    for (int64_t i = 0; i < T * H * D; i++)
        assert_true(out[i] == qkv[i / D / H * WIDTH + (H + G + i / D % H / (H / G)) * D + i % D]);
    for (int64_t i = 0; i < T * WIDTH; i++)
        assert_true(i % WIDTH >= (H + G) * D || dqkv[i] == 0);
    ops_trial_destroy(trial);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"definition ref", test_definition, NULL, NULL, "ref"},
        {"definition cpu", test_definition, NULL, NULL, "cpu"},
        {"decoding ref", test_decoding, NULL, NULL, "ref"},
        {"decoding cpu", test_decoding, NULL, NULL, "cpu"},
        {"window of 1 ref", test_window_of_one, NULL, NULL, "ref"},
        {"window of 1 cpu", test_window_of_one, NULL, NULL, "cpu"},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
