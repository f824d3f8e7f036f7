/* The H200 preset against the five steps that were measured on one ("Time by kernel" in
 * docs/notes/2026-11-15-gpu-kernels.md): the whole step, and each kind of kernel; in f32 against
 * the whole step of a shape that is mostly products. */
#include <math.h>
#include "testing.h"
#include "base/plugin.h"
#include "plan/plan_time.h"

/* Milliseconds of a step, and of these: products (with the bias gradients fused into them),
 * attention forward and backward, everything else except idle time. A step is the mean of two GPUs,
 * which differ by 6 %; kinds are of one GPU, less what the latest changes saved when measured in
 * isolation. */
static const struct row {
    const char *name;
    struct model_config model;
    int64_t batch, tokens;
    double step, kinds[OPS_KIND_COUNT];
} rows[] = {
#define GPT2(l, c, h)             \
    .model = {.arch = MODEL_GPT2, \
              .layers = (l),      \
              .width = (c),       \
              .heads = (h),       \
              .kv_heads = (h),    \
              .head_width = 64,   \
              .ff = 4 * (c),      \
              .context = 1024}
#define LLAMA(l, c, h, d, f)       \
    .model = {.arch = MODEL_LLAMA, \
              .layers = (l),       \
              .width = (c),        \
              .heads = (h),        \
              .kv_heads = 8,       \
              .head_width = (d),   \
              .ff = (f),           \
              .context = 2048,     \
              .rope_theta = 10000}
    {"gpt2-124m", GPT2(12, 768, 12), 64, 1024, 103.4, {76.1, 4.6, 10.9, 10.5}},
    {"gpt2-774m", GPT2(36, 1280, 20), 32, 1024, 298.5, {238.4, 11.8, 28.3, 21.0}},
    {"gpt2-1.5b", GPT2(48, 1600, 25), 16, 1024, 300.7, {240.3, 10.0, 24.6, 24.6}},
    {"llama 0.8b", LLAMA(16, 2048, 32, 64, 5632), 16, 2048, 314.6, {235.9, 13.1, 35.9, 32.0}},
    {"llama 3b", LLAMA(28, 3072, 24, 128, 8192), 4, 2048, 288.8, {210.9, 6.6, 25.4, 39.3}},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

/* Row 38 of docs/notes/2026-11-19-gpu-shapes.md: short sequences, so that products count most. */
static const struct row f32_row = {.name = "gpt2 4 x 2000",
                                   .model = {.arch = MODEL_GPT2,
                                             .layers = 4,
                                             .width = 2000,
                                             .heads = 20,
                                             .kv_heads = 20,
                                             .head_width = 100,
                                             .ff = 8000,
                                             .vocab = 45968,
                                             .context = 115},
                                   .batch = 54,
                                   .tokens = 115,
                                   .step = 50.0};

static struct plan_request request_of(const struct row *row, const char *ops)
{
    struct plan_request request = {
        .model = row->model,
        .engine = {.micro_batch = row->batch, .tokens = row->tokens, .micro_batches = 1},
        .zero = {.optimizer.beta1 = 0.9,
                 .optimizer.beta2 = 0.95,
                 .optimizer.eps = 1e-8,
                 .clip = 1,
                 .micro_batches = 1,
                 .type = DTYPE_BF16,
                 .sum_type = DTYPE_F32},
        .parallel = {.tp = 1, .pp = 1},
        .ops = ops,
        .compute = DTYPE_BF16,
        .ranks = 1,
        .threads = 1,
        .gpu = true};
    request.model.tied = 1;
    request.model.vocab = row->model.vocab > 0 ? row->model.vocab : 50304;
    request.model.norm_eps = 1e-5;
    request.model.init_std = 0.02;
    request.model.path = "";
    return request;
}

static double milliseconds_by(const char *ops, const struct row *row,
                              const struct machine_profile *machine, enum dtype type)
{
    struct env env = testing_env(1);
    struct plan_request request = request_of(row, ops);
    struct plan_time time;
    request.compute = request.zero.type = type;
    if (plan_time(&env, &request, machine, &time) != STATUS_OK)
        fail_msg("%s: %s", row->name, log_first_error(env.log));
    env_destroy(&env);
    return 1e3 * time.step;
}

static double milliseconds_in(const struct row *row, const struct machine_profile *machine,
                              enum dtype type)
{
    return milliseconds_by("ref", row, machine, type);
}

static double milliseconds(const struct row *row, const struct machine_profile *machine)
{
    return milliseconds_in(row, machine, DTYPE_BF16);
}

/* All kinds but one cost nothing; copies count as streaming kernels. */
static double of_kind(const struct row *row, const struct machine_profile *machine, int kind)
{
    struct machine_profile only = *machine;
    struct ops_measured calls[160];
    only.ops.measured = calls;
    only.ops.measured_count = 0;
    assert_true(machine->ops.measured_count <= (int)(sizeof calls / sizeof *calls));
    for (int m = 0; m < machine->ops.measured_count; m++) { /* still sorted */
        if (ops_kind_of(machine->ops.measured[m].shape.op) == (enum ops_kind)kind)
            calls[only.ops.measured_count++] = machine->ops.measured[m];
    }
    for (int k = 0; k < OPS_KIND_COUNT; k++) {
        if (k != kind)
            only.ops.rates[k] = (struct ops_rate){0, 1e30, 1e30};
    }
    if (kind != OPS_KIND_MEMORY)
        only.copy_bytes_per_second = 1e30;
    return milliseconds(row, &only);
}

static void test_measured_steps(void **state)
{
    struct env env = testing_env(1);
    struct machine_profile machine;
    (void)state;
    assert_ok(machine_profile_load(&env, "h200", &machine));
    for (int i = 0; i < ROWS; i++) {
        double step = milliseconds(&rows[i], &machine);
        print_message("%-10s step %6.1f measured %6.1f (%+.1f %%);", rows[i].name, step,
                      rows[i].step, 100 * (step / rows[i].step - 1));
        for (int k = 0; k < OPS_KIND_COUNT; k++) {
            double ms = of_kind(&rows[i], &machine, k);
            print_message("  %s %.1f/%.1f", ops_kind_word((enum ops_kind)k), ms, rows[i].kinds[k]);
            assert_true(fabs(ms / rows[i].kinds[k] - 1) < 0.08);
        }
        print_message("\n");
        assert_true(fabs(step / rows[i].step - 1) < 0.05);
    }
    machine_profile_free(&env, &machine);
    env_destroy(&env);
}

/* Where the CUDA back end is built, a plan asks it what its kernels compute: tiles, waves, products
 * with SwiGLU. These steps are newer (docs/notes/2026-11-19-gpu-shapes.md). */
static void test_steps_of_cuda(void **state)
{
    static const double steps[ROWS] = {102.3, 291.6, 0, 309.1, 276.8}; /* 0: not measured */
    struct env env = testing_env(1);
    struct machine_profile machine;
    char why[256];
    void *entry;
    (void)state;
    if (!plugin_look("cuda", "sifr_ops_cuda_fill", &entry, why, sizeof why)) {
        env_destroy(&env);
        testing_skip(why);
    }
    assert_ok(machine_profile_load(&env, "h200", &machine));
    for (int i = 0; i < ROWS; i++) {
        double step = milliseconds_by("cuda", &rows[i], &machine, DTYPE_BF16);
        print_message("%-10s step %6.1f measured %6.1f\n", rows[i].name, step, steps[i]);
        assert_true(steps[i] == 0 || fabs(step / steps[i] - 1) < 0.05);
    }
    machine_profile_free(&env, &machine);
    env_destroy(&env);
}

/* By rates alone, so that both types have the same kinds of calls; everything else takes no time.
 */
static double times_in_f32(const struct machine_profile *machine, const struct row *row, int kind)
{
    struct machine_profile only = *machine;
    only.ops.measured_count = 0;
    only.copy_bytes_per_second = 1e30;
    for (int k = 0; k < OPS_KIND_COUNT; k++) {
        if (k != kind)
            only.ops.rates[k] = (struct ops_rate){0, 1e30, 1e30};
    }
    return milliseconds_in(row, &only, DTYPE_F32) / milliseconds_in(row, &only, DTYPE_BF16);
}

/* A measured step; and by rates: attention's kernels differ from those of 16 bits, and without
 * tensor cores it would take nine times as long. */
static void test_f32_is_slower(void **state)
{
    struct env env = testing_env(1);
    struct machine_profile machine;
    const struct row *llama = &rows[ROWS - 1];
    (void)state;
    assert_ok(machine_profile_load(&env, "h200", &machine));
    double step = milliseconds_in(&f32_row, &machine, DTYPE_F32);
    print_message("%s in f32: step %.1f measured %.1f\n", f32_row.name, step, f32_row.step);
    assert_true(fabs(step / f32_row.step - 1) < 0.1);
    machine_profile_free(&env, &machine);
    for (int i = 0; machine_preset_name(i); i++) {
        assert_ok(machine_profile_load(&env, machine_preset_name(i), &machine));
        double products = times_in_f32(&machine, llama, OPS_KIND_PRODUCT);
        double attention = times_in_f32(&machine, llama, OPS_KIND_ATTENTION);
        double backward = times_in_f32(&machine, llama, OPS_KIND_ATTENTION_BACKWARD);
        print_message("%s in f32: products %.2f, attention %.2f and %.2f times as long\n",
                      machine.name, products, attention, backward);
        assert_true(products > 2 && products < 3);
        assert_true(attention > 2 && attention < 6);
        assert_true(backward > 2 && backward < 6);
        machine_profile_free(&env, &machine);
    }
    env_destroy(&env);
}

/* The prices of longer sequences rise, also between measured calls. */
static void test_longer_sequences_take_longer(void **state)
{
    static const char *const names[] = {"attention", "attention_backward",
                                        "attention_backward_rope"};
    struct env env = testing_env(1);
    struct machine_profile machine;
    struct device *device;
    struct ops *ops;
    (void)state;
    assert_ok(machine_profile_load(&env, "h200", &machine));
    assert_ok(device_create(&env, "dry", 0, &device));
    assert_ok(ops_create(device, "ref", DTYPE_BF16, &ops));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        double before = 0;
        for (int64_t tokens = 128; tokens <= 32768; tokens += 64) {
            const struct ops_case call = {names[i], .attention = OPS_HEADS(4, tokens, 24, 8, 128)};
            double seconds = ops_price(&machine.ops, ops, &call);
            if (seconds <= before)
                fail_msg("%s of %lld tokens takes %g s, of fewer %g s", names[i], (long long)tokens,
                         seconds, before);
            before = seconds;
        }
    }
    ops_destroy(ops);
    device_destroy(device);
    machine_profile_free(&env, &machine);
    env_destroy(&env);
}

/* Only Hopper has kernels for products with SwiGLU. */
static void test_swiglu_alone(void **state)
{
    struct env env = testing_env(1);
    struct machine_profile machine;
    (void)state;
    for (int i = 0; machine_preset_name(i); i++) {
        const char *name = machine_preset_name(i);
        assert_ok(machine_profile_load(&env, name, &machine));
        assert_true(machine.ops.swiglu_alone == (strncmp(name, "a100", 4) == 0));
        machine_profile_free(&env, &machine);
    }
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measured_steps), cmocka_unit_test(test_steps_of_cuda),
        cmocka_unit_test(test_f32_is_slower), cmocka_unit_test(test_longer_sequences_take_longer),
        cmocka_unit_test(test_swiglu_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
