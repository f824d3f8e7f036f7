/* test_ops_products -- on a GPU: products whose algorithm was chosen by timing, among those with
 * the bits of the first, have the same bits as products with the first algorithm: with every
 * epilogue, aligned and not, adding and not, in the first call of a shape and in later ones.
 *
 * `test_ops_products cuda`; exit status 77 = no GPU. Prints the choice for every shape. */
#include "gpu.h"
#include "ops/op_rig.h"
#include "ops/op_shapes.h"

/* Each has at least 10 GFLOP: smaller ones are not tuned. The second is not aligned, the third has
 * sums that may be split, and the weight's gradient of the fourth has tiles that fit 132 processors
 * but that the library does not suggest (cuda_product_fit.c). */
#define LARGE_SHAPES(X)        \
    X(4096, 1024, 1280, false) \
    X(4099, 1030, 1301, true)  \
    X(32768, 512, 320, false)  \
    X(4096, 2048, 1408, false)

/* Logits of an odd vocabulary, with rows of full packs in 16 bit. */
static const struct ops_case cases[] = {LARGE_SHAPES(LINEAR_CASES)
                                            STRIDE_CASES(1024, 768, 10007, true, 10008)};
enum { CASES = sizeof cases / sizeof cases[0] };

static void count_choices(void *user, enum log_level level, const char *line)
{
    (void)level;
    if (strncmp(line, "tune: ", 6) != 0)
        return;
    ++*(int *)user;
    print_message("%s\n", line);
}

/* `choices`: the number of shapes that were tuned. */
static void open_with(struct rig *rig, const char *way, enum dtype type, int *choices)
{
    *choices = 0;
    setenv("SIFR_CUDA_PRODUCTS", way, 1);
    rig_open(rig, "cuda", type, 2);
    log_destroy(rig->env.log);
    rig->env.log = log_create(count_choices, choices, LOG_DEBUG);
    assert_non_null(rig->env.log);
}

static void run(struct rig *rig, struct ops_trial *trial)
{
    char why[OPS_CASE_NAME];
    ops_trial_reset(trial);
    ops_trial_run(trial);
    if (stream_sync(rig->stream) != STATUS_OK)
        fail_msg("%s", log_first_error(rig->env.log));
    if (!ops_trial_is_sound(trial, why))
        fail_msg("%s", why);
}

static bool same_outputs(struct ops_trial *a, struct ops_trial *b, const char *name)
{
    const struct ops_call *call = ops_trial_call(a);
    bool same = true;
    for (int i = 0; i < call->count; i++) {
        const struct ops_tensor *t = &call->tensors[i];
        if (t->role == OPS_SCRATCH || memcmp(ops_trial_read(a, i), ops_trial_read(b, i),
                                             (size_t)t->count * dtype_bytes(t->type)) == 0)
            continue;
        print_error("%s: %s has other bits\n", name, t->name);
        same = false;
    }
    return same;
}

static void test_same_bits(void **state)
{
    enum { TIMES = 2 };
    enum dtype type = *(enum dtype *)*state;
    struct rig first, timed;
    int none, choices, wrong = 0;
    void *ballast; /* a trial may use a fraction of the memory in use */
    open_with(&first, "first", type, &none);
    open_with(&timed, "same", type, &choices);
    assert_ok(device_alloc(first.device, MEM_SCRATCH, "ballast", (size_t)6 << 30, &ballast));
    for (int i = 0; i < CASES; i++) {
        char name[OPS_CASE_NAME];
        struct ops_trial *a = rig_trial(&first, &cases[i]), *b = rig_trial(&timed, &cases[i]);
        run(&first, a);
        for (int k = 0; k < TIMES; k++) {
            run(&timed, b);
            wrong += !same_outputs(a, b, ops_case_name(&cases[i], name));
        }
        ops_trial_destroy(a);
        ops_trial_destroy(b);
    }
    device_free(first.device, ballast);
    rig_close(&first);
    rig_close(&timed);
    assert_int_equal(wrong, 0);
    assert_int_equal(none, 0);
    assert_true(choices > 12);
}

/* Creating ops fails if one of the variables has an unknown value. */
static void test_unknown_word(void **state)
{
    static const char *const expected[] = {
        "SIFR_CUDA_PRODUCTS=fist: unknown value; use first, same or fastest",
        "SIFR_CUDA_GELU=fist: unknown value; use library, large or own",
        "SIFR_CUDA_SWIGLU=fist: unknown value; use library, large or own",
        "SIFR_CUDA_DW=fist: unknown value; use library, large or own",
        "SIFR_CUDA_ATTENTION=fist: unknown value; use matrix or clusters"};
    (void)state;
    unsetenv("SIFR_CUDA_PRODUCTS");
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        struct env env = testing_env(1);
        struct device *device;
        struct ops *ops;
        char variable[32];
        snprintf(variable, sizeof variable, "%.*s", (int)strcspn(expected[i], "="), expected[i]);
        setenv(variable, "fist", 1);
        assert_ok(device_create(&env, "cuda", 0, &device));
        assert_int_equal(ops_create(device, "cuda", DTYPE_BF16, &ops), STATUS_CONFIG);
        assert_non_null(strstr(log_first_error(env.log), expected[i]));
        unsetenv(variable);
        device_destroy(device);
        env_destroy(&env);
    }
}

int main(int count, char **words)
{
    static enum dtype types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_same_bits, &types[0]),
        cmocka_unit_test_prestate(test_same_bits, &types[1]),
        cmocka_unit_test_prestate(test_same_bits, &types[2]),
        cmocka_unit_test(test_unknown_word),
    };
    if (count < 2)
        printf("SKIPPED: it compares products on a device: test_ops_products cuda\n");
    if (count < 2 || test_missing(words[1]))
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
