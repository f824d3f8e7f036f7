/* Memory of the units' buffers: its size, and that nothing is overwritten while it is needed, in
 * the order of real timetables. */
#include "engine/rig.h"

#include "engine/activations.h"

enum { ROUNDS = 7 };

static const struct unit_shape SHAPE = {.batch = 2, .tokens = 9};
static const uint32_t WHOLE =
    1u << PASS_FORWARD | 1u << PASS_REBUILD | 1u << PASS_BACKWARD | 1u << PASS_LOSS;

struct bench {
    struct env env;
    struct device *device;
    struct ops *ops;
    struct model *model;
    const struct unit_graph *graph;
    struct activations *activations;
    struct unit_copies copies[8];
    size_t workspace; /* of the ops */
};

static void open_bench(struct bench *b, int llama, enum keep own_below, uint32_t passes,
                       struct unit_copies copies)
{
    struct model_config config = llama ? rig_llama() : rig_gpt2();
    b->env = testing_env(1);
    assert_ok(device_create(&b->env, "cpu", 0, &b->device));
    assert_ok(ops_create(b->device, "cpu", DTYPE_F32, &b->ops));
    b->workspace = mem_bytes(b->env.mem, MEM_SCRATCH);
    assert_ok(model_create(b->device, &config, &b->model));
    b->graph = model_graph(b->model);
    for (int u = 0; u < b->graph->unit_count; u++)
        b->copies[u] = copies;
    assert_ok(activations_create(b->ops, b->graph, SHAPE, own_below, passes, b->copies, FAR_NONE, 0,
                                 &b->activations));
}

static void close_bench(struct bench *b)
{
    activations_destroy(b->activations);
    model_destroy(b->model);
    ops_destroy(b->ops);
    device_destroy(b->device);
    env_destroy(&b->env);
}

/* --- how much ------------------------------------------------------------------------------- */

static bool has_both(const struct unit_buffer *buffer)
{
    return (buffer->passes & UNIT_PARTS) == UNIT_PARTS;
}

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The bytes that units declare for schedules without a split backward: only buffers that their
 * passes use. */
static void check_bytes(int llama, enum keep own_below, bool parts)
{
    const struct unit_copies copies = {3, 2};
    struct bench b;
    size_t kept = 0, shared = 0, scratch = 0;
    open_bench(&b, llama, own_below, WHOLE | (parts ? UNIT_PARTS : 0), copies);
    for (int u = 0; u < b.graph->unit_count; u++) {
        const struct unit *unit = &b.graph->units[u];
        bool split = parts && unit_has_parts(unit);
        struct unit_buffer list[UNIT_MAX_BUFFERS];
        int count = unit->type->buffers(unit, b.ops, SHAPE, list);
        size_t own = 0, between = 0, remade = 0, inside[PASS_COUNT] = {0};
        for (int i = 0; i < count; i++) {
            size_t bytes =
                (most(list[i].bytes, 1) + 63) / 64 * 64; /* empty buffers have an address,
                                                                       too */
            if (list[i].keep < own_below)
                own += bytes;
            else if (split && has_both(&list[i]))
                between += bytes;
            if (list[i].keep >= own_below && list[i].keep != KEEP_NOT)
                remade += bytes;
            for (int pass = 0; pass < PASS_COUNT; pass++)
                if (list[i].keep == KEEP_NOT && list[i].passes >> pass & 1 &&
                    (WHOLE >> pass & 1 || (split && !has_both(&list[i]))))
                    inside[pass] += bytes;
        }
        kept += (size_t)copies.own * own + (size_t)copies.split * between;
        shared = most(shared, remade);
        for (int pass = 0; pass < PASS_COUNT; pass++)
            if (WHOLE >> pass & 1 || (parts && UNIT_PARTS >> pass & 1))
                scratch = most(scratch, inside[pass]);
    }
    size_t stream = (size_t)(SHAPE.batch * SHAPE.tokens * b.graph->stream_width) * sizeof(float);
    assert_int_equal(mem_bytes(b.env.mem, MEM_ACTIVATIONS), kept + shared + 2 * stream);
    assert_int_equal(mem_bytes(b.env.mem, MEM_SCRATCH), b.workspace + scratch);
    close_bench(&b);
}

static void test_bytes(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++)
        for (enum keep own_below = KEEP_UNLESS_FULL; own_below <= KEEP_NOT; own_below++)
            for (int parts = 0; parts < 2; parts++)
                check_bytes(llama, own_below, parts);
}

/* --- for how long --------------------------------------------------------------------------- */

enum tag_kind { TAG_FORWARD, TAG_BACKWARD, TAG_KINDS };

static int tag_of(int64_t round, int u, enum tag_kind kind)
{
    return 1 + (int)((round * 8 + u) * TAG_KINDS + kind) % 255;
}

/* In `pass` of a unit: buffers selected by `lasts` still have their contents; then everything that
 * the pass may write is overwritten. */
static void pass_over(const struct bench *b, int64_t round, int u, enum pass pass, int found,
                      bool (*lasts)(const struct unit_buffer *, enum keep), enum keep own_below,
                      int put)
{
    const struct unit *unit = &b->graph->units[u];
    struct unit_buffer list[UNIT_MAX_BUFFERS];
    struct unit_run run = {.ops = b->ops};
    int count = unit->type->buffers(unit, b->ops, SHAPE, list);
    activations_bind(b->activations, u, round, pass, &run);
    for (int i = 0; i < count; i++)
        for (size_t k = 0; k < list[i].bytes && lasts && lasts(&list[i], own_below); k++)
            if (((unsigned char *)run.buffers[i])[k] != found)
                fail_msg("round %lld, %s, %s: '%s' is gone", (long long)round, unit->name,
                         pass_word(pass), list[i].name);
    for (int i = 0; i < count; i++)
        if (run.buffers[i])
            memset(run.buffers[i], put, list[i].bytes);
    memset(run.room, put, 1);
}

static bool is_own(const struct unit_buffer *buffer, enum keep own_below)
{
    return buffer->keep < own_below;
}

static bool is_of_both(const struct unit_buffer *buffer, enum keep own_below)
{
    (void)own_below;
    return has_both(buffer);
}

static void act(const struct bench *b, struct timetable_action a, enum keep own_below)
{
    int last = b->graph->unit_count - 1;
    for (int u = 0; u < last; u++) {
        int forward = tag_of(a.round, u, TAG_FORWARD), back = tag_of(a.round, u, TAG_BACKWARD);
        assert_true(unit_has_parts(&b->graph->units[u]));
        if (a.verb == TIMETABLE_FORWARD)
            pass_over(b, a.round, u, PASS_FORWARD, 0, NULL, own_below, forward);
        if (a.verb == TIMETABLE_BACKWARD)
            pass_over(b, a.round, u, PASS_BACKWARD, forward, is_own, own_below, back);
        if (a.verb == TIMETABLE_INPUT)
            pass_over(b, a.round, u, PASS_BACKWARD_INPUT, forward, is_own, own_below, back);
        if (a.verb == TIMETABLE_WEIGHT)
            pass_over(b, a.round, u, PASS_BACKWARD_WEIGHT, back, is_of_both, own_below, 0);
    }
}

static void check_lives(int llama, enum keep own_below, const struct timetable *t, int p)
{
    bool splits = timetable_splits(&t->shape);
    struct unit_copies copies = {timetable_in_flight(&t->shape, p, 0),
                                 timetable_count_peaks(t, p, 0).split};
    struct bench b;
    open_bench(&b, llama, own_below, WHOLE | (splits ? UNIT_PARTS : 0), copies);
    for (int64_t i = t->first[p]; i < t->first[p + 1]; i++)
        act(&b, t->actions[i], own_below);
    close_bench(&b);
}

static void test_lives(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct timetable_shape shape = {.kind = i < 2 ? TIMETABLE_ZERO_BUBBLE : TIMETABLE_1F1B,
                                        .pp = 3,
                                        .chunks = 1,
                                        .rounds = ROUNDS,
                                        .eager = i % 2};
        struct env env = testing_env(1);
        struct timetable t;
        assert_ok(timetable_create(&env, &shape, &t));
        for (int p = 0; p < shape.pp; p++)
            for (enum keep own_below = KEEP_UNLESS_FULL; own_below <= KEEP_NOT; own_below++)
                for (int llama = 0; llama < 2; llama++)
                    check_lives(llama, own_below, &t, p);
        timetable_free(&env, &t);
        env_destroy(&env);
    }
}

/* Buffers rebuilt before backward-input are where backward-input and backward-weight expect them.
 */
static void test_rebuilt_for_both_parts(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        struct bench b;
        struct unit_run rebuild = {0}, input = {0}, weight = {0};
        struct unit_buffer list[UNIT_MAX_BUFFERS];
        open_bench(&b, llama, KEEP_UNLESS_FULL, WHOLE | UNIT_PARTS, (struct unit_copies){3, 2});
        int count = b.graph->units[1].type->buffers(&b.graph->units[1], b.ops, SHAPE, list);
        activations_bind(b.activations, 1, 4, PASS_REBUILD, &rebuild);
        activations_bind(b.activations, 1, 4, PASS_BACKWARD_INPUT, &input);
        activations_bind(b.activations, 1, 4, PASS_BACKWARD_WEIGHT, &weight);
        for (int i = 0; i < count; i++) {
            if (list[i].keep != KEEP_NOT)
                assert_ptr_equal(rebuild.buffers[i], input.buffers[i]);
            if (has_both(&list[i]))
                assert_ptr_equal(input.buffers[i], weight.buffers[i]);
        }
        close_bench(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_lives),
        cmocka_unit_test(test_rebuilt_for_both_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
