/* AdamW in isolation against PyTorch's in double (tools/golden_model.py): given gradients from zero
 * to large, eps 1e-8, two segments with their own learning rate and decay.
 */
#include <jansson.h>
#include <math.h>
#include "testing.h"
#include "ops/ops.h"

enum { SEGMENTS = 2, MOST = 256 };

struct segment {
    float param[MOST], grad[MOST], m[MOST], v[MOST];
    int64_t count;
};

static double real(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static void read_floats(const json_t *list, float *out)
{
    assert_true(json_array_size(list) <= MOST);
    for (size_t i = 0; i < json_array_size(list); i++)
        out[i] = (float)json_number_value(json_array_get(list, i));
}

static void assert_near(const char *what, double tolerance, const json_t *list, const float *found)
{
    double difference = 0, exact = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        double b = json_number_value(json_array_get(list, i)), d = found[i] - b;
        difference += d * d;
        exact += b * b;
        /* Also each element: the norm hides those with small gradients, where m cancels. */
        if (!(fabs(d) <= 10 * tolerance * fabs(b) + 1e-30))
            fail_msg("%s[%zu]: %.9g, exact %.9g", what, i, (double)found[i], b);
    }
    if (!(sqrt(difference) <= tolerance * sqrt(exact)))
        fail_msg("%s: off by %.2e of %.3e", what, sqrt(difference), sqrt(exact));
}

static void check_backend(const char *backend)
{
    struct env env = testing_env(2);
    struct device *device;
    struct ops *ops;
    struct stream *stream;
    json_error_t error;
    json_t *root = json_load_file("tests/ops/golden/adamw.json", 0, &error);
    if (!root)
        fail_msg("adamw.json: %s (tests run in the project's folder)", error.text);
    const json_t *hyper = json_object_get(root, "hyper");
    const json_t *list = json_object_get(root, "segments");
    assert_ok(device_create(&env, "cpu", 0, &device));
    assert_ok(ops_create(device, backend, DTYPE_F32, &ops));
    assert_ok(stream_create(device, "golden", &stream));

    struct segment *segments = calloc(SEGMENTS, sizeof *segments);
    struct update_segment work[SEGMENTS];
    assert_int_equal(json_array_size(list), SEGMENTS);
    for (int s = 0; s < SEGMENTS; s++) {
        const json_t *given = json_array_get(list, (size_t)s);
        struct segment *at = &segments[s];
        read_floats(json_object_get(given, "param"), at->param);
        at->count = (int64_t)json_array_size(json_object_get(given, "param"));
        work[s] = (struct update_segment){.count = at->count,
                                          .param = at->param,
                                          .grad = at->grad,
                                          .m = at->m,
                                          .v = at->v,
                                          .lr_mul = (float)real(given, "lr_mul"),
                                          .decay = (float)real(given, "decay")};
    }
    struct update adamw = {
        .beta1 = real(hyper, "beta1"), .beta2 = real(hyper, "beta2"), .eps = real(hyper, "eps")};
    size_t steps = json_array_size(json_object_get(json_array_get(list, 0), "grads"));
    for (size_t t = 0; t < steps; t++) {
        for (size_t s = 0; s < SEGMENTS; s++) {
            const json_t *grads = json_object_get(json_array_get(list, s), "grads");
            read_floats(json_array_get(grads, t), segments[s].grad);
        }
        struct step_scalars scalars = {
            .lr = (float)real(hyper, "lr"),
            .correction1 = (float)(1 - pow(adamw.beta1, (double)(t + 1))),
            .correction2 = (float)(1 - pow(adamw.beta2, (double)(t + 1))),
            .grad_scale = (float)real(hyper, "grad_scale")};
        ops_update(ops, stream, &adamw, &scalars, work, SEGMENTS);
        assert_ok(stream_sync(stream));
    }
    for (size_t s = 0; s < SEGMENTS; s++) {
        const json_t *given = json_array_get(list, s);
        assert_near("param", 1e-6, json_object_get(given, "result"), segments[s].param);
        assert_near("m", 1e-6, json_object_get(given, "m"), segments[s].m);
        assert_near("v", 1e-6, json_object_get(given, "v"), segments[s].v);
    }
    free(segments);
    json_decref(root);
    stream_destroy(stream);
    ops_destroy(ops);
    device_destroy(device);
    env_destroy(&env);
}

static void test_ref(void **state)
{
    (void)state;
    check_backend("ref");
}

static void test_cpu(void **state)
{
    (void)state;
    check_backend("cpu");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ref), cmocka_unit_test(test_cpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
