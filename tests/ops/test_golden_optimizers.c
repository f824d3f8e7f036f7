/* Ten steps of every rule against golden numbers (tools/golden_optimizers.py): AdamW and SGD of
 * PyTorch in double, Muon in double, AdamW with 8-bit moments exactly. Two segments, one matrix
 * each, with their own learning rate and decay.
 *
 * Without arguments it tests the back ends that run on any machine; with `cuda` it tests a GPU,
 * and exits with 77 if the machine has none.
 */
#include <jansson.h>
#include <math.h>
#include "gpu.h"
#include "ops/op_rig.h"

enum { SEGMENTS = 2, MOST = 128, NO_GPU = 77 };

/* Rounding in f32, ten times. */
#define BOUND 1e-6
/* Newton-Schulz in f32, as in test_ops_agree; on a GPU in TF32. */
#define BOUND_DIRECTION      4e-6
#define BOUND_DIRECTION_TF32 1e-2

struct subject {
    const char *backend;
    double direction; /* the bound of an orthogonalized matrix */
};

/* Device memory of one segment. Codes of adamw8 use the first bytes of m and v. */
struct segment {
    int64_t rows, columns, count;
    float *param, *grad, *m, *v, *direction;
    uint8_t *m_scale, *v_scale;
    void *scratch;
};

/* One case: what it was given, and where it runs. */
struct replay {
    const struct subject *subject;
    struct rig *rig;
    const json_t *root, *golden; /* the file, the case */
    struct update update;
    bool muon;
    struct segment segments[SEGMENTS];
    struct update_segment *table; /* (SEGMENTS) in device memory, as is the next */
    struct step_scalars *scalars;
};

/* --- the file ------------------------------------------------------------------------------- */

static double real(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static const json_t *at(const json_t *object, const char *key, size_t i)
{
    return json_array_get(json_object_get(object, key), i);
}

static const json_t *given(const struct replay *replay, size_t s)
{
    const char *name = json_string_value(json_object_get(replay->golden, "inputs"));
    return at(json_object_get(replay->root, "inputs"), name, s);
}

static int64_t read_floats(const json_t *list, float *out)
{
    size_t count = json_array_size(list);
    assert_true(count > 0 && count <= MOST);
    for (size_t i = 0; i < count; i++)
        out[i] = (float)json_number_value(json_array_get(list, i));
    return (int64_t)count;
}

/* --- device memory -------------------------------------------------------------------------- */

static void *zeros(struct rig *rig, size_t bytes)
{
    void *data;
    assert_ok(device_alloc(rig->device, MEM_SCRATCH, "golden", bytes, &data));
    device_zero(rig->stream, data, bytes);
    return data;
}

static void write_floats(struct rig *rig, float *to, const json_t *list)
{
    float host[MOST];
    int64_t count = read_floats(list, host);
    device_copy(rig->stream, to, host, (size_t)count * sizeof(float));
    assert_ok(stream_sync(rig->stream));
}

static void open_segment(struct replay *replay, size_t i)
{
    struct segment *s = &replay->segments[i];
    struct rig *rig = replay->rig;
    const json_t *shape = at(replay->root, "segments", i);
    s->rows = (int64_t)real(shape, "rows");
    s->columns = (int64_t)real(shape, "columns");
    s->count = s->rows * s->columns;
    float **floats[] = {&s->param, &s->grad, &s->m, &s->v, &s->direction};
    for (size_t f = 0; f < sizeof floats / sizeof *floats; f++)
        *floats[f] = zeros(rig, MOST * sizeof(float));
    s->m_scale = zeros(rig, MOST);
    s->v_scale = zeros(rig, MOST);
    s->scratch = zeros(rig, ops_orthogonalize_scratch(rig->ops, s->rows, s->columns));
    write_floats(rig, s->param, json_object_get(given(replay, i), "param"));
}

static void close_segment(struct replay *replay, const struct segment *s)
{
    void *const all[] = {s->param,     s->grad,    s->m,       s->v,
                         s->direction, s->m_scale, s->v_scale, s->scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        device_free(replay->rig->device, all[i]);
}

/* --- ten steps ------------------------------------------------------------------------------ */

static bool has_decay(const json_t *hyper)
{
    return !json_is_false(json_object_get(hyper, "decay"));
}

static struct update_segment row_of(const struct replay *replay, size_t i)
{
    const json_t *shape = at(replay->root, "segments", i);
    const json_t *hyper = json_object_get(replay->golden, "hyper");
    const struct segment *s = &replay->segments[i];
    struct update_segment row = {.count = s->count,
                                 .param = s->param,
                                 .grad = s->grad,
                                 .m = s->m,
                                 .v = s->v,
                                 .m_scale = s->m_scale,
                                 .v_scale = s->v_scale,
                                 .first = json_integer_value(json_object_get(shape, "first")),
                                 .key = (uint32_t)real(shape, "key"),
                                 .skip = (int)real(shape, "skip"),
                                 .lr_mul = (float)real(shape, "lr_mul"),
                                 .decay = has_decay(hyper) ? (float)real(shape, "decay") : 0};
    if (replay->update.rule == UPDATE_SGD && replay->update.beta1 == 0)
        row.m = NULL;
    return row;
}

static void update(struct replay *replay, enum update_rule rule, struct update_segment *rows)
{
    struct rig *rig = replay->rig;
    replay->update.rule = rule;
    device_copy(rig->stream, replay->table, rows, SEGMENTS * sizeof *rows);
    ops_update(rig->ops, rig->stream, &replay->update, replay->scalars, replay->table, SEGMENTS);
    assert_ok(stream_sync(rig->stream));
}

/* The momentum's direction, orthogonalized and applied. */
static void update_muon(struct replay *replay, struct update_segment *rows)
{
    struct rig *rig = replay->rig;
    for (int i = 0; i < SEGMENTS; i++)
        rows[i].copy = replay->segments[i].direction;
    update(replay, UPDATE_MUON, rows);
    for (int i = 0; i < SEGMENTS; i++) {
        const struct segment *s = &replay->segments[i];
        int64_t longer = s->rows > s->columns ? s->rows : s->columns;
        ops_orthogonalize(rig->ops, rig->stream, s->rows, s->columns, s->direction, s->scratch);
        rows[i].copy = NULL;
        rows[i].grad = s->direction;
        rows[i].scale = 0.2f * sqrtf((float)longer);
    }
    update(replay, UPDATE_APPLY, rows);
}

static void step(struct replay *replay, size_t t)
{
    struct rig *rig = replay->rig;
    const struct update *u = &replay->update;
    double number = (double)(t + 1);
    struct update_segment rows[SEGMENTS];
    struct step_scalars scalars = {.lr =
                                       (float)real(json_object_get(replay->golden, "hyper"), "lr"),
                                   .correction1 = (float)(1 - pow(u->beta1, number)),
                                   .correction2 = (float)(1 - pow(u->beta2, number)),
                                   .grad_scale = (float)real(replay->root, "grad_scale")};
    device_copy(rig->stream, replay->scalars, &scalars, sizeof scalars);
    for (size_t i = 0; i < SEGMENTS; i++) {
        write_floats(rig, replay->segments[i].grad, at(given(replay, i), "grads", t));
        rows[i] = row_of(replay, i);
    }
    replay->update.number = (int64_t)t + 1;
    if (replay->muon)
        update_muon(replay, rows);
    else
        update(replay, u->rule, rows);
}

/* --- comparing ------------------------------------------------------------------------------ */

/* Compares with the list that has this key. A rule without such a state has no list. */
static void assert_near(const struct replay *replay, size_t s, const char *key, const float *data,
                        double bound)
{
    const json_t *exact = json_object_get(at(replay->golden, "segments", s), key);
    const char *name = json_string_value(json_object_get(replay->golden, "name"));
    float found[MOST];
    double difference = 0, norm = 0;
    if (exact == NULL)
        return;
    device_copy(replay->rig->stream, found, data, sizeof found);
    assert_ok(stream_sync(replay->rig->stream));
    assert_int_equal(json_array_size(exact), replay->segments[s].count);
    for (size_t i = 0; i < json_array_size(exact); i++) {
        double b = json_number_value(json_array_get(exact, i));
        double d = found[i] - (bound > 0 ? b : (double)(float)b);
        difference += d * d;
        norm += b * b;
        /* Each element, too, except of products: the norm hides those with small gradients. Sums
         * of both signs lose some digits. */
        if (bound <= BOUND && !(fabs(d) <= 100 * bound * fabs(b)))
            fail_msg("%s: %s[%zu] of segment %zu is %.9g, exact %.9g", name, key, i, s,
                     (double)found[i], b);
    }
    if (!(sqrt(difference) <= bound * sqrt(norm)))
        fail_msg("%s: %s of segment %zu is off by %.2e of %.3e", name, key, s, sqrt(difference),
                 sqrt(norm));
}

static void assert_codes(const struct replay *replay, size_t s, const char *key, const void *data)
{
    const json_t *exact = json_object_get(at(replay->golden, "segments", s), key);
    uint8_t found[MOST];
    device_copy(replay->rig->stream, found, data, sizeof found);
    assert_ok(stream_sync(replay->rig->stream));
    assert_true(json_array_size(exact) > 0);
    for (size_t i = 0; i < json_array_size(exact); i++) {
        int code = (int)json_integer_value(json_array_get(exact, i));
        if (found[i] != code)
            fail_msg("adamw8: %s[%zu] of segment %zu is %d, exact %d", key, i, s, found[i], code);
    }
}

static void compare(const struct replay *replay, size_t i)
{
    const struct segment *s = &replay->segments[i];
    double direction = replay->subject->direction;
    if (replay->update.rule == UPDATE_ADAMW8) {
        assert_near(replay, i, "param", s->param, 0);
        assert_codes(replay, i, "m", s->m);
        assert_codes(replay, i, "v", s->v);
        assert_codes(replay, i, "m_scale", s->m_scale);
        assert_codes(replay, i, "v_scale", s->v_scale);
        return;
    }
    assert_near(replay, i, "param", s->param, replay->muon ? direction : BOUND);
    assert_near(replay, i, "m", s->m, BOUND);
    assert_near(replay, i, "v", s->v, BOUND);
    assert_near(replay, i, "direction", s->direction, direction);
}

/* --- the tests ------------------------------------------------------------------------------ */

static enum update_rule rule_of(const json_t *golden)
{
    const char *word = json_string_value(json_object_get(golden, "rule"));
    int rule = 0;
    while (rule < UPDATE_RULES && strcmp(update_word((enum update_rule)rule), word) != 0)
        rule++;
    assert_int_not_equal(rule, UPDATE_RULES);
    return (enum update_rule)rule;
}

static void replay_case(const struct subject *subject, struct rig *rig, const json_t *root,
                        const json_t *golden)
{
    const json_t *hyper = json_object_get(golden, "hyper");
    bool adam = json_object_get(hyper, "beta1") != NULL;
    struct replay replay = {
        .subject = subject,
        .rig = rig,
        .root = root,
        .golden = golden,
        .update = {.rule = rule_of(golden),
                   .beta1 = real(hyper, adam ? "beta1" : "momentum"),
                   .beta2 = real(hyper, "beta2"),
                   .eps = real(hyper, "eps"),
                   .nesterov = json_is_true(json_object_get(hyper, "nesterov"))},
        .table = zeros(rig, SEGMENTS * sizeof *replay.table),
        .scalars = zeros(rig, sizeof *replay.scalars),
    };
    replay.muon = replay.update.rule == UPDATE_MUON;
    for (size_t i = 0; i < SEGMENTS; i++)
        open_segment(&replay, i);
    size_t steps = json_array_size(json_object_get(given(&replay, 0), "grads"));
    assert_int_equal(steps, 10);
    for (size_t t = 0; t < steps; t++)
        step(&replay, t);
    for (size_t i = 0; i < SEGMENTS; i++) {
        compare(&replay, i);
        close_segment(&replay, &replay.segments[i]);
    }
    device_free(rig->device, replay.table);
    device_free(rig->device, replay.scalars);
}

static void test_rules(void **state)
{
    const struct subject *subject = *state;
    struct rig rig;
    json_error_t error;
    json_t *root = json_load_file("tests/ops/golden/optimizers.json", 0, &error);
    if (!root)
        fail_msg("optimizers.json: %s (tests run in the project's folder)", error.text);
    const json_t *cases = json_object_get(root, "cases");
    assert_true(json_array_size(cases) > 0);
    rig_open(&rig, subject->backend, DTYPE_F32, 2);
    for (size_t i = 0; i < json_array_size(cases); i++)
        replay_case(subject, &rig, root, json_array_get(cases, i));
    rig_close(&rig);
    json_decref(root);
}

static int test_backend(const char *backend, double direction)
{
    struct subject subject = {backend, direction};
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(test_rules, &subject)};
    return cmocka_run_group_tests_name(backend, tests, NULL, NULL);
}

int main(int count, char **words)
{
    if (count > 1 && strcmp(words[1], "cuda") == 0)
        return test_missing("cuda") ? NO_GPU : test_backend("cuda", BOUND_DIRECTION_TF32);
    return test_backend("ref", BOUND_DIRECTION) + test_backend("cpu", BOUND_DIRECTION);
}
