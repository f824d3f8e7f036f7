/* test_ops_agree -- every back end and compute type against the reference in double, on every
 * shape: values, memory, aliases, and equal bits for any number of threads and from run to run.
 *
 * Without arguments it tests the back ends that run on any machine. `test_ops_agree cuda [TYPE
 * [PART]]` tests a GPU on more shapes and exits with 77 if there is none; with PART, only cases
 * whose name contains it: of an op ("attention"), or of its shape ("window"). `cuda-fast` tests only
 * what fast mode changes. `cuda-once` runs every shape once and compares nothing, for sanitizers,
 * which are slow. In the environment, SIFR_TEST_SHARE=K/N takes only share K of N of the cases, so
 * that N processes share the work of the reference; SIFR_CUDA_ATTENTION=clusters adds shapes for
 * that form of attention's backward pass; with SIFR_CUDA_EXACT=1, f32 has the bounds of fp32
 * everywhere. The reference gets the inputs of the tested back end, already rounded to its type, so
 * that the test sees only the errors of its arithmetic. All disagreements are printed before the
 * test fails.
 */
#include <math.h>
#include "gpu.h"
#include "ops/op_rig.h"
#include "ops/op_shapes_gpu.h"

enum { NO_GPU = 77 };

struct subject {
    const char *backend;
    enum dtype type;
    bool fast;         /* see ops_be_fast */
    const char *part;  /* of the names of the cases to test; NULL: all */
    int share, shares; /* of the cases that are left, those with number % shares == share */
};

/* --- shapes --------------------------------------------------------------------------------- */

static bool is_gpu(const struct subject *subject)
{
    return strcmp(subject->backend, "cuda") == 0;
}

static bool has_clusters(const struct subject *subject)
{
    const char *way = getenv("SIFR_CUDA_ATTENTION");
    return is_gpu(subject) && way && strcmp(way, "clusters") == 0;
}

/* Shape i of all shapes for a subject; NULL after the last. */
static const struct ops_case *shape_at(const struct subject *subject, int i)
{
    const struct {
        const struct ops_case *shapes;
        int count;
    } lists[] = {{op_shapes, OP_SHAPE_COUNT},
                 {op_shapes_gpu, is_gpu(subject) ? OP_SHAPE_GPU_COUNT : 0},
                 {op_shapes_clusters, has_clusters(subject) ? OP_SHAPE_CLUSTERS_COUNT : 0}};
    for (int l = 0; l < 3; i -= lists[l++].count)
        if (i < lists[l].count)
            return &lists[l].shapes[i];
    return NULL;
}

/* Fast mode does not change the other ops. */
static bool differs_in_fast_mode(const char *op)
{
    return strstr(op, "linear") != NULL || strstr(op, "attention_backward") != NULL;
}

static bool is_meant(const struct subject *subject, const struct ops_case *c)
{
    char name[OPS_CASE_NAME];
    return (subject->part == NULL || strstr(ops_case_name(c, name), subject->part) != NULL) &&
           (!subject->fast || differs_in_fast_mode(c->op));
}

/* With SIFR_TEST_SAMPLE=N (testing.h), shape i is tested if it is the first of its op, or every N-th
 * after that. */
static bool is_sampled(const struct subject *subject, int i)
{
    const char *every = getenv("SIFR_TEST_SAMPLE");
    int n = every ? atoi(every) : 1, before = 0;
    for (int j = 0; n > 1 && j < i; j++)
        before += strcmp(shape_at(subject, j)->op, shape_at(subject, i)->op) == 0;
    return n <= 1 || before % n == 0;
}

/* Whether a tensor of the case has another type in another compute type. */
static bool depends_on_type(struct rig *tested, struct rig *other, const struct ops_case *c)
{
    struct ops_call a = {0}, b = {0};
    ops_find_op(c->op)->describe(tested->ops, c, &a);
    ops_find_op(c->op)->describe(other->ops, c, &b);
    for (int i = 0; i < a.count; i++)
        if (a.tensors[i].type != b.tensors[i].type)
            return true;
    return false;
}

/* The reference has one function for all compute types where no tensor depends on them. It is
 * tested with f32; bf16 and f16 would repeat the same call. */
static bool is_repeat(const struct subject *subject, struct rig *tested, struct rig *other,
                      const struct ops_case *c)
{
    return strcmp(subject->backend, "ref") == 0 && subject->type != DTYPE_F32 &&
           !depends_on_type(tested, other, c);
}

/* The next shape of an op under test, starting at *i, which advances past it; NULL: no more. */
static const struct ops_case *next_shape(const struct subject *subject, int *i)
{
    const struct ops_case *c;
    int number = 0; /* among those that are meant */
    for (int before = 0; before < *i; before++)
        number += is_meant(subject, shape_at(subject, before));
    while ((c = shape_at(subject, (*i)++)) != NULL)
        if (is_meant(subject, c) && number++ % subject->shares == subject->share &&
            is_sampled(subject, *i - 1))
            return c;
    return NULL;
}

/* --- bounds --------------------------------------------------------------------------------- */

/* 16-bit outputs of f32 ops may round to either side if the f32 value differs in the last bit. */
#define BOUND_16_BIT 4e-3
/* Products of f32 on a GPU are TF32: factors of 11 bits, as those of fp16, and so is attention. */
#define BOUND_TF32 2e-3
/* f32 and f64 results of 16-bit inputs without intermediate rounding. */
#define BOUND_STATISTICS 1e-4

/* Roundings to 8 or 11 bits in all products of the Newton-Schulz iterations: single rows and small
 * matrices lose up to 17 units, simulated in double, matrices of 64 x 192 and more half of it. */
#define DEPTH_ITERATIONS 20

static bool has(const struct ops_op *op, const char *word)
{
    return strstr(op->name, word) != NULL;
}

/* Consecutive roundings to the compute type in an op, with some margin for error propagation. */
static double depth_of(const struct ops_op *op)
{
    if (has(op, "orthogonalize"))
        return DEPTH_ITERATIONS;
    bool gated = has(op, "linear") && has(op, "swiglu");
    return has(op, "attention") || has(op, "gelu") || gated ? 4 : has(op, "norm") ? 3 : 2;
}

/* SIFR_CUDA_EXACT=1: nothing is rounded to TF32. */
static bool is_exact(void)
{
    const char *asked = getenv("SIFR_CUDA_EXACT");
    return asked && strcmp(asked, "1") == 0;
}

static bool is_16_bit(enum dtype type)
{
    return type == DTYPE_BF16 || type == DTYPE_F16;
}

/* For a tensor of the compute type, or one computed from such tensors. */
static double bound_computed(const struct subject *subject, const struct ops_op *op,
                             const struct ops_case *c, bool of_compute_type)
{
    if (!is_16_bit(subject->type)) {
        bool product = has(op, "linear") || has(op, "attention"), many = has(op, "orthogonalize");
        if (!is_gpu(subject))
            return op->bound;
        if (is_exact() || !(product || many))
            return 4 * op->bound;
        return many ? DEPTH_ITERATIONS * 0x1p-11 : BOUND_TF32;
    }
    double unit = subject->type == DTYPE_BF16 ? 0x1p-8 : 0x1p-11;
    bool rounded = of_compute_type || c->branch || has(op, "rope_attention") || has(op, "dw_sum");
    return rounded ? depth_of(op) * unit : BOUND_STATISTICS;
}

/* `exact` is the same call in the reference: a tensor whose type differs there has the compute
 * type. */
static double bound_of(const struct subject *subject, const struct ops_op *op,
                       const struct ops_case *c, const struct ops_call *call,
                       const struct ops_call *exact, int tensor)
{
    const struct ops_tensor *t = &call->tensors[tensor];
    for (int i = 0; i < call->count; i++) {
        if (call->tensors[i].type != exact->tensors[i].type)
            return bound_computed(subject, op, c, t->type != exact->tensors[tensor].type);
    }
    return is_16_bit(t->type) && op->bound > 0 ? BOUND_16_BIT : op->bound;
}

/* --- running -------------------------------------------------------------------------------- */

static size_t tensor_bytes(const struct ops_tensor *t)
{
    return (size_t)t->count * dtype_bytes(t->type);
}

static bool is_output(const struct ops_tensor *t)
{
    return t->role == OPS_OUT || t->role == OPS_IN_OUT;
}

static void *copy_of(const void *data, size_t bytes)
{
    void *copy = malloc(bytes + 1);
    assert_non_null(copy);
    return memcpy(copy, data, bytes);
}

static double as_double(const void *data, enum dtype type, int64_t i)
{
    double value;
    if (type == DTYPE_I64)
        return (double)((const int64_t *)data)[i];
    if (type == DTYPE_U8)
        return ((const uint8_t *)data)[i];
    dtype_convert(&value, DTYPE_F64, (const char *)data + (size_t)i * dtype_bytes(type), type, 1);
    return value;
}

/* ||a - b|| / ||b||; ||a|| when b is zero. Both have the shape of `t`, and a its type. */
static double relative_error(const struct ops_tensor *t, const void *a, const void *b,
                             enum dtype b_type)
{
    double difference = 0, norm = 0;
    enum dtype a_type = t->type;
    for (int64_t i = 0; i < t->count; i++) {
        if (ops_is_between(t, i))
            continue;
        double x = as_double(a, a_type, i), y = as_double(b, b_type, i);
        difference += (x - y) * (x - y);
        norm += y * y;
    }
    return sqrt(norm > 0 ? difference / norm : difference);
}

/* Wrong cases, printed as they occur. */
struct verdict {
    const struct subject *subject;
    int wrong;
};

__attribute__((format(printf, 2, 3))) static void complain(struct verdict *verdict,
                                                           const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    print_error("%s %s: %s\n", verdict->subject->backend, dtype_name(verdict->subject->type), text);
    verdict->wrong++;
}

static void assert_right(const struct verdict *verdict)
{
    if (verdict->wrong > 0)
        fail_msg("%d wrong", verdict->wrong);
}

/* After a failure a GPU does nothing more, so the test ends. */
static void run(struct rig *rig, struct ops_trial *trial, const char *name, struct verdict *verdict)
{
    char why[OPS_CASE_NAME];
    ops_trial_reset(trial);
    ops_trial_run(trial);
    if (stream_sync(rig->stream) != STATUS_OK)
        fail_msg("%s: %s", name, log_first_error(rig->env.log));
    if (!ops_trial_is_sound(trial, why))
        complain(verdict, "%s: %s", name, why);
}

/* --- agreement ------------------------------------------------------------------------------ */

/* The largest error of an op as a fraction of its bound. */
struct worst {
    double fraction, error;
};

static void agree_on(struct rig *tested, struct rig *reference, const struct ops_case *c,
                     struct verdict *verdict, struct worst *worst)
{
    char name[OPS_CASE_NAME];
    struct ops_trial *a = rig_trial(tested, c), *b = rig_trial(reference, c);
    const struct ops_call *call = ops_trial_call(a), *exact = ops_trial_call(b);
    const struct ops_op *op = ops_trial_op(a);
    ops_trial_take(b, a);
    run(tested, a, ops_case_name(c, name), verdict);
    run(reference, b, name, verdict);
    for (int i = 0; i < call->count; i++) {
        const struct ops_tensor *t = &call->tensors[i];
        if (!is_output(t))
            continue;
        double bound = bound_of(verdict->subject, op, c, call, exact, i);
        double error =
            relative_error(t, ops_trial_read(a, i), ops_trial_read(b, i), exact->tensors[i].type);
        if (!(error <= bound))
            complain(verdict, "%s: %s is off by %.2e, more than %.1e", name, t->name, error, bound);
        else if (bound > 0 && error / bound > worst[op - ops_ops].fraction)
            worst[op - ops_ops] = (struct worst){error / bound, error};
    }
    ops_trial_destroy(a);
    ops_trial_destroy(b);
}

static void test_agree(void **state)
{
    const struct subject *subject = *state;
    struct verdict verdict = {subject, 0};
    const struct ops_case *c;
    int at = 0;
    struct worst *worst = calloc((size_t)ops_op_count, sizeof *worst);
    struct rig tested, reference;
    assert_non_null(worst);
    rig_open(&tested, subject->backend, subject->type, 2);
    if (is_gpu(subject))
        rig_check_own(&tested);
    if (subject->fast)
        ops_be_fast(tested.ops);
    rig_open(&reference, "ref", DTYPE_F64, 1);
    while ((c = next_shape(subject, &at)) != NULL)
        if (!is_repeat(subject, &tested, &reference, c))
            agree_on(&tested, &reference, c, &verdict, worst);
    for (int op = 0; is_gpu(subject) && op < ops_op_count; op++)
        if (worst[op].fraction > 0)
            print_message("%s %-24s worst error %.1e, %.0f%% of its bound\n",
                          dtype_name(subject->type), ops_ops[op].name, worst[op].error,
                          100 * worst[op].fraction);
    free(worst);
    rig_close(&tested);
    rig_close(&reference);
    assert_right(&verdict);
}

/* --- aliases -------------------------------------------------------------------------------- */

/* Output `out` overwrites input `at`: all outputs must be as with separate buffers. */
static void check_alias(struct rig *rig, struct ops_trial *trial, int out, int at, const char *name,
                        struct verdict *verdict)
{
    const struct ops_call *call = ops_trial_call(trial);
    const char *input = call->tensors[at].name;
    void *expected[OPS_CALL_TENSORS] = {NULL};
    run(rig, trial, name, verdict);
    for (int i = 0; i < call->count; i++)
        if (is_output(&call->tensors[i]))
            expected[i] = copy_of(ops_trial_read(trial, i), tensor_bytes(&call->tensors[i]));
    ops_trial_reset(trial);
    ops_trial_run_aliased(trial, out, input);
    for (int i = 0; i < call->count; i++) {
        const struct ops_tensor *t = &call->tensors[i];
        if (expected[i] &&
            memcmp(ops_trial_read(trial, i == out ? at : i), expected[i], tensor_bytes(t)) != 0)
            complain(verdict, "%s: %s has other bits when %s overwrites %s", name, t->name,
                     call->tensors[out].name, input);
        free(expected[i]);
    }
}

/* Whether an output of the case may overwrite an input. */
static bool has_aliases(struct rig *rig, const struct ops_case *c)
{
    struct ops_call call = {0};
    ops_find_op(c->op)->describe(rig->ops, c, &call);
    for (int j = 0; j < call.count * 2; j++)
        if (call.tensors[j / 2].may_be[j % 2] != NULL)
            return true;
    return false;
}

static void in_place_on(struct rig *rig, const struct ops_case *c, struct verdict *verdict)
{
    char name[OPS_CASE_NAME];
    if (!has_aliases(rig, c))
        return;
    struct ops_trial *trial = rig_trial(rig, c);
    const struct ops_call *call = ops_trial_call(trial);
    ops_case_name(c, name);
    for (int j = 0; j < call->count * 2; j++) {
        const char *input = call->tensors[j / 2].may_be[j % 2];
        if (input == NULL)
            continue;
        int at = (int)(ops_find_tensor(call, input) - call->tensors);
        check_alias(rig, trial, j / 2, at, name, verdict);
    }
    ops_trial_destroy(trial);
}

/* If an output overwrites an input, it and all other outputs keep their bits. */
static void test_in_place(void **state)
{
    const struct subject *subject = *state;
    struct verdict verdict = {subject, 0};
    const struct ops_case *c;
    int at = 0;
    struct rig rig;
    rig_open(&rig, subject->backend, subject->type, 2);
    while ((c = next_shape(subject, &at)) != NULL)
        in_place_on(&rig, c, &verdict);
    rig_close(&rig);
    assert_right(&verdict);
}

/* --- bits ----------------------------------------------------------------------------------- */

static void equal_bits_on(struct rig *rigs, int rig_count, const struct ops_case *c,
                          struct verdict *verdict)
{
    char name[OPS_CASE_NAME];
    struct ops_trial *first = rig_trial(&rigs[0], c);
    const struct ops_call *call = ops_trial_call(first);
    run(&rigs[0], first, ops_case_name(c, name), verdict);
    for (int r = 1; r < rig_count; r++) {
        struct ops_trial *other = rig_trial(&rigs[r], c);
        run(&rigs[r], other, name, verdict);
        for (int i = 0; i < call->count; i++) {
            const struct ops_tensor *t = &call->tensors[i];
            if (t->role == OPS_SCRATCH)
                continue;
            const void *data = ops_trial_read(first, i);
            if (memcmp(data, ops_trial_read(other, i), tensor_bytes(t)) != 0)
                complain(verdict, "%s: %s has other bits with %d threads", name, t->name,
                         rigs[r].env.threads);
        }
        ops_trial_destroy(other);
    }
    ops_trial_destroy(first);
}

/* With one, two and three threads; a GPU has no threads and simply runs three times. */
static void test_threads(void **state)
{
    enum { RIGS = 3 };
    const struct subject *subject = *state;
    struct verdict verdict = {subject, 0};
    const struct ops_case *c;
    int at = 0;
    struct rig rigs[RIGS];
    for (int r = 0; r < RIGS; r++)
        rig_open(&rigs[r], subject->backend, subject->type, r + 1);
    while ((c = next_shape(subject, &at)) != NULL)
        equal_bits_on(rigs, RIGS, c, &verdict);
    for (int r = 0; r < RIGS; r++)
        rig_close(&rigs[r]);
    assert_right(&verdict);
}

static void apply_bits_on(struct rig *rig, struct ops_case shape, struct verdict *verdict)
{
    char name[OPS_CASE_NAME];
    struct ops_trial *again = rig_trial(rig, &shape);
    ops_case_name(&shape, name);
    shape.op = "add_norm";
    struct ops_trial *forward = rig_trial(rig, &shape);
    const struct ops_tensor *y = ops_find_tensor(ops_trial_call(again), "y");
    const struct ops_tensor *y0 = ops_find_tensor(ops_trial_call(forward), "y");
    run(rig, again, name, verdict);
    run(rig, forward, name, verdict);
    const void *data = ops_trial_read(again, (int)(y - ops_trial_call(again)->tensors));
    const void *data0 = ops_trial_read(forward, (int)(y0 - ops_trial_call(forward)->tensors));
    if (memcmp(data, data0, tensor_bytes(y)) != 0)
        complain(verdict, "%s: other bits than add_norm", name);
    ops_trial_destroy(again);
    ops_trial_destroy(forward);
}

/* Recomputing y from the saved sum and statistics gives the bits of the forward pass. */
static void test_norm_apply_bits(void **state)
{
    const struct subject *subject = *state;
    struct verdict verdict = {subject, 0};
    const struct ops_case *c;
    int at = 0;
    struct rig rig;
    rig_open(&rig, subject->backend, subject->type, 2);
    while ((c = next_shape(subject, &at)) != NULL) {
        if (strcmp(c->op, "norm_apply") == 0)
            apply_bits_on(&rig, *c, &verdict);
    }
    rig_close(&rig);
    assert_right(&verdict);
}

/* Nothing is written out of bounds, and the GPU reports no error. */
static void test_once(void **state)
{
    const struct subject *subject = *state;
    struct verdict verdict = {subject, 0};
    const struct ops_case *c;
    int at = 0;
    struct rig rig;
    char name[OPS_CASE_NAME];
    rig_open(&rig, subject->backend, subject->type, 2);
    if (is_gpu(subject))
        rig_check_own(&rig);
    while ((c = next_shape(subject, &at)) != NULL) {
        struct ops_trial *trial = rig_trial(&rig, c);
        run(&rig, trial, ops_case_name(c, name), &verdict);
        ops_trial_destroy(trial);
    }
    rig_close(&rig);
    assert_right(&verdict);
}

/* --- the tests ------------------------------------------------------------------------------ */

/* Every described op has a shape in the list. */
static void test_all_covered(void **state)
{
    (void)state;
    for (int op = 0; op < ops_op_count; op++) {
        int i = 0;
        while (i < OP_SHAPE_COUNT && strcmp(op_shapes[i].op, ops_ops[op].name) != 0)
            i++;
        if (i == OP_SHAPE_COUNT)
            fail_msg("no shape for %s", ops_ops[op].name);
    }
}

static int test_subject(struct subject subject)
{
    char name[64];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_agree, &subject),
        cmocka_unit_test_prestate(test_in_place, &subject),
        cmocka_unit_test_prestate(test_norm_apply_bits, &subject),
        cmocka_unit_test_prestate(test_threads, &subject),
    };
    snprintf(name, sizeof name, "%s %s", subject.backend, dtype_name(subject.type));
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

/* The reference has no threads. */
static int test_reference(enum dtype type)
{
    struct subject subject = {.backend = "ref", .type = type, .shares = 1};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_agree, &subject),
        cmocka_unit_test_prestate(test_in_place, &subject),
        cmocka_unit_test_prestate(test_norm_apply_bits, &subject),
    };
    return cmocka_run_group_tests_name(dtype_name(type), tests, NULL, NULL);
}

static int test_single(struct subject subject, void (*test)(void **))
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(test, &subject)};
    return cmocka_run_group_tests_name(dtype_name(subject.type), tests, NULL, NULL);
}

static int test_type_of_gpu(enum dtype type, const char *way, const char *part)
{
    struct subject subject = {.backend = "cuda",
                              .type = type,
                              .fast = strcmp(way, "-fast") == 0,
                              .part = part,
                              .shares = 1};
    const char *share = getenv("SIFR_TEST_SHARE");
    if (next_shape(&subject, &(int){0}) == NULL) {
        fprintf(stderr, "no op has '%s' in its name\n", part);
        return 1;
    }
    if (share != NULL && (sscanf(share, "%d/%d", &subject.share, &subject.shares) != 2 ||
                          subject.share < 1 || subject.share-- > subject.shares)) {
        fprintf(stderr, "SIFR_TEST_SHARE=%s: use K/N with K from 1 to N\n", share);
        return 1;
    }
    if (subject.fast) /* fast mode does not promise equal bits */
        return test_single(subject, test_agree);
    return strcmp(way, "-once") == 0 ? test_single(subject, test_once) : test_subject(subject);
}

static int test_gpu(const char *only, const char *way, const char *part)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    int wrong = 0;
    if (test_missing("cuda"))
        return NO_GPU;
    for (int i = 0; i < 3; i++) {
        if (only == NULL || strcmp(only, dtype_name(types[i])) == 0)
            wrong += test_type_of_gpu(types[i], way, part);
    }
    return wrong;
}

int main(int count, char **words)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_covered)};
    struct subject cpu = {.backend = "cpu", .type = DTYPE_F32, .shares = 1};
    if (count > 1 && strncmp(words[1], "cuda", 4) == 0)
        return test_gpu(count > 2 ? words[2] : NULL, words[1] + 4, count > 3 ? words[3] : NULL);
    return cmocka_run_group_tests(tests, NULL, NULL) + test_reference(DTYPE_F32) +
           test_reference(DTYPE_BF16) + test_reference(DTYPE_F16) + test_subject(cpu);
}
