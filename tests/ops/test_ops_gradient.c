/* test_ops_gradient -- the reference's backward ops against central differences in double.
 *
 * For a backward op, L = sum over its cogradients of <cogradient, output of the forward op>. Some
 * elements of each input with a gradient are moved by +-STEP, the forward op runs again, and
 * (L+ - L-) / 2 STEP is compared with the gradient that the backward op wrote.
 */
#include <math.h>
#include "base/rng.h"
#include "ops/op_rig.h"
#include "ops/op_shapes.h"

#define STEP  1e-5
#define BOUND 1e-7
enum {
    PROBES = 24,    /* elements of an input that are moved */
    TERMS = 100000, /* of a loss */
};

static double as_double(const void *data, enum dtype type, int64_t i)
{
    return type == DTYPE_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

static int index_of(const struct ops_call *call, const char *name)
{
    const struct ops_tensor *t = ops_find_tensor(call, name);
    assert_non_null(t);
    return (int)(t - call->tensors);
}

/* The terms of L from the forward op on its current images; returns their number. They are not
 * summed, so that unchanged terms cancel exactly in a difference. */
static int64_t loss_terms(struct ops_trial *forward, struct ops_trial *backward, double *terms)
{
    const struct ops_call *call = ops_trial_call(backward);
    int64_t count = 0;
    ops_trial_reset(forward);
    ops_trial_run(forward);
    for (int i = 0; i < call->count; i++) {
        const struct ops_tensor *t = &call->tensors[i];
        if (t->cogradient_of == NULL)
            continue;
        int at = index_of(ops_trial_call(forward), t->cogradient_of);
        enum dtype type = ops_trial_call(forward)->tensors[at].type;
        const void *cogradient = ops_trial_image(backward, i);
        const void *output = ops_trial_read(forward, at);
        assert_true(count + t->count <= TERMS);
        for (int64_t j = 0; j < t->count; j++)
            if (!ops_is_between(t, j))
                terms[count++] = as_double(cogradient, t->type, j) * as_double(output, type, j);
    }
    return count;
}

/* dL / d image[tensor][i] of the forward op. */
static double difference(struct ops_trial *forward, struct ops_trial *backward, int tensor,
                         int64_t i)
{
    static double above[TERMS], below[TERMS];
    double *image = ops_trial_image(forward, tensor);
    double middle = image[i], sum = 0;
    image[i] = middle + STEP;
    loss_terms(forward, backward, above);
    image[i] = middle - STEP;
    int64_t count = loss_terms(forward, backward, below);
    image[i] = middle;
    for (int64_t j = 0; j < count; j++)
        sum += above[j] - below[j];
    return sum / (2 * STEP);
}

/* The relative error of one gradient over the probes. */
static double gradient_error(struct ops_trial *forward, struct ops_trial *backward, int gradient)
{
    const struct ops_tensor *t = &ops_trial_call(backward)->tensors[gradient];
    int input = index_of(ops_trial_call(forward), t->gradient_of);
    struct rng rng = rng_stream(3, t->name);
    double error = 0, norm = 0;
    for (int64_t i = 0; i < PROBES && i < t->count; i++) {
        int64_t at = (int64_t)rng_permute(rng, (uint64_t)i, (uint64_t)t->count);
        if (ops_is_between(t, at))
            continue;
        double expected = difference(forward, backward, input, at);
        double found = ((const double *)ops_trial_read(backward, gradient))[at];
        error += (found - expected) * (found - expected);
        norm += found * found;
    }
    return sqrt(error / (norm + 1e-6)); /* zero gradients must be below 1e-10 */
}

static void check_case(struct rig *rig, const struct ops_case *c)
{
    char name[OPS_CASE_NAME];
    struct ops_case shape = *c;
    shape.op = ops_find_op(c->op)->forward;
    struct ops_trial *backward = rig_trial(rig, c), *forward = rig_trial(rig, &shape);
    const struct ops_call *call = ops_trial_call(backward);
    ops_trial_run(backward);
    for (int i = 0; i < call->count; i++) {
        if (call->tensors[i].gradient_of == NULL)
            continue;
        double error = gradient_error(forward, backward, i);
        if (!(error <= BOUND))
            fail_msg("%s: %s is off by %.2e", ops_case_name(c, name), call->tensors[i].name, error);
    }
    ops_trial_destroy(forward);
    ops_trial_destroy(backward);
}

static bool has_gradients(const struct ops_case *c)
{
    bool smooth = !c->zeros && !c->ties; /* MAS has a corner there */
    return ops_find_op(c->op)->forward != NULL && strcmp(c->op, "norm_apply") != 0 && !c->add &&
           smooth;
}

static void test_gradients(void **state)
{
    (void)state;
    struct rig rig;
    int checked = 0;
    rig_open(&rig, "ref", DTYPE_F64, 1);
    for (int i = 0; i < OP_SHAPE_COUNT; i++) {
        if (has_gradients(&op_shapes[i])) {
            if (testing_sampled())
                check_case(&rig, &op_shapes[i]);
            checked++;
        }
    }
    assert_true(checked > 50);
    rig_close(&rig);
}

/* The test detects a wrong gradient: if a cogradient changes after the backward op has run, the
 * differences no longer agree. */
static void test_sees_errors(void **state)
{
    (void)state;
    struct rig rig;
    struct ops_case shape = {"gelu_backward", .count = 20}, forward_shape = {"gelu", .count = 20};
    rig_open(&rig, "ref", DTYPE_F64, 1);
    struct ops_trial *backward = rig_trial(&rig, &shape),
                     *forward = rig_trial(&rig, &forward_shape);
    const struct ops_call *call = ops_trial_call(backward);
    int dy = index_of(call, "dy"), dpre = index_of(call, "dpre");
    ops_trial_run(backward);
    assert_true(gradient_error(forward, backward, dpre) <= BOUND);
    for (int i = 0; i < 20; i++)
        ((double *)ops_trial_image(backward, dy))[i] += 1e-5;
    assert_true(gradient_error(forward, backward, dpre) > BOUND);
    ops_trial_destroy(forward);
    ops_trial_destroy(backward);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_sees_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
