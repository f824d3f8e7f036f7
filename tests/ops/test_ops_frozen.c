/* test_ops_frozen -- gradients that are not wanted: for every subset of an op's gradients of
 * parameters, with NULL for the others, the rest has the bits of the complete call.
 *
 * `test_ops_frozen cuda`: on a GPU; exit status 77 = no GPU. */
#include "gpu.h"
#include "ops/op_rig.h"

enum { MOST = 4 };

/* An op, and the outputs that may be left out. */
struct subject {
    struct ops_case shape;
    const char *outputs[MOST];
};

static const struct subject subjects[] = {
    {{"linear_dw", .rows = 77, .linear = {48, 40, .out_in = true}, .bias = true}, {"dw", "dbias"}},
    {{"linear_dw", .rows = 130, .linear = {.in = 24, .out = 1100}, .bias = true, .add = true},
     {"dw", "dbias"}},
    {{"norm_backward", .rows = 75, .norm = {NORM_LAYER, 192, 1e-5, 0}, .bias = true, .branch = true,
      .columns = true},
     {"dweight", "dbias", "dsum_columns", "out_columns"}},
    {{"norm_backward", .rows = 600, .norm = {NORM_LAYER, 768, 1e-5, 0}, .bias = true,
      .branch = true, .columns = true},
     {"dweight", "dbias", "dsum_columns", "out_columns"}},
    {{"norm_backward", .rows = 33, .norm = {NORM_RMS, 101, 1e-5, 0}, .branch = true}, {"dweight"}},
    {{"embedding_backward",
      .embedding = {.batch = 3, .tokens = 17, .width = 40, .vocab = 29, .positions = 20}},
     {"dwte", "dwpe"}},
};

static int find(const struct ops_call *call, const char *name)
{
    for (int i = 0; i < call->count; i++)
        if (strcmp(call->tensors[i].name, name) == 0)
            return i;
    fail_msg("no tensor %s", name);
    return -1;
}

static size_t bytes_of(const struct ops_tensor *t)
{
    return (size_t)t->count * dtype_bytes(t->type);
}

/* Run with the outputs in `left_out` (bits) NULL, and compare with `whole`, a complete run. */
static void try_subset(struct rig *rig, const struct subject *subject, struct ops_trial *whole,
                       unsigned left_out)
{
    struct ops_trial *trial = rig_trial(rig, &subject->shape);
    struct ops_call call = *ops_trial_call(trial);
    for (int k = 0; k < MOST && subject->outputs[k]; k++)
        if (left_out >> k & 1)
            call.tensors[find(&call, subject->outputs[k])].data = NULL;
    ops_trial_op(trial)->run(rig->ops, rig->stream, &subject->shape, &call);
    assert_ok(stream_sync(rig->stream));
    for (int i = 0; i < call.count; i++) {
        const struct ops_tensor *t = &call.tensors[i];
        if (t->role != OPS_OUT && t->role != OPS_IN_OUT)
            continue;
        /* What was left out is as it was before the call. */
        const void *expected = t->data ? ops_trial_read(whole, i) : ops_trial_image(trial, i);
        if (memcmp(expected, ops_trial_read(trial, i), bytes_of(t)) != 0)
            fail_msg("%s without outputs %x: %s has other bits", subject->shape.op, left_out,
                     t->name);
    }
    ops_trial_destroy(trial);
}

static void try_backend(const char *backend, enum dtype type)
{
    struct rig rig;
    rig_open(&rig, backend, type, 2);
    for (size_t s = 0; s < sizeof subjects / sizeof *subjects; s++) {
        const struct subject *subject = &subjects[s];
        unsigned count = 0;
        while (count < MOST && subject->outputs[count])
            count++;
        struct ops_trial *whole = rig_trial(&rig, &subject->shape);
        ops_trial_run(whole);
        for (unsigned left_out = 1; left_out < 1u << count; left_out++)
            try_subset(&rig, subject, whole, left_out);
        ops_trial_destroy(whole);
    }
    rig_close(&rig);
}

static const char *backend = "cpu";

static void test_subsets(void **state)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    bool gpu = strcmp(backend, "cuda") == 0;
    (void)state;
    for (size_t i = 0; i < (gpu ? sizeof types / sizeof *types : 1); i++)
        try_backend(backend, types[i]);
    if (!gpu)
        try_backend("ref", DTYPE_F64);
}

int main(int count, char **words)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_subsets)};
    if (count > 1)
        backend = words[1];
    if (strcmp(backend, "cuda") == 0 && test_missing("cuda"))
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
