/* Which pieces unit_merge_pieces joins, on a graph made by hand. */
#include "testing.h"

#include <stdio.h>
#include <string.h>

#include "unit/unit_merge.h"

static void nothing(const struct unit *unit, struct unit_run *run)
{
    (void)unit, (void)run;
}

#define USES UNIT_ALL_USES
static const struct unit_type embedding = {
    .name = "embedding",
    .reads = {[PASS_FORWARD] = USES},
    .writes = {[PASS_BACKWARD] = USES},
    .run = {[PASS_FORWARD] = nothing, [PASS_BACKWARD] = nothing},
};
static const struct unit_type block = {
    .name = "block",
    .reads = {[PASS_FORWARD] = USES, [PASS_BACKWARD] = USES},
    .writes = {[PASS_BACKWARD] = USES},
    .run = {[PASS_FORWARD] = nothing, [PASS_BACKWARD] = nothing},
};
/* Its last param is never updated. */
static const struct unit_type half_frozen = {
    .name = "half frozen",
    .reads = {[PASS_FORWARD] = USES, [PASS_BACKWARD] = USES},
    .writes = {[PASS_BACKWARD] = 1},
    .run = {[PASS_FORWARD] = nothing, [PASS_BACKWARD] = nothing},
};
static const struct unit_type head = {
    .name = "head",
    .reads = {[PASS_LOSS] = USES},
    .writes = {[PASS_LOSS] = USES},
    .run = {[PASS_LOSS] = nothing},
};

enum { BLOCKS = 6, UNITS = BLOCKS + 2, PARAMS = UNITS * 2, ELEMENTS = 100, ROOM = 128 };

/* Each unit has two params of ELEMENTS elements, which need ROOM, in one piece or in two. */
struct fixture {
    struct unit_tensor tensors[PARAMS];
    struct unit_param params[PARAMS];
    struct unit_piece pieces[PARAMS];
    struct unit units[UNITS];
    struct unit_graph graph;
};

static void fill(struct fixture *f, bool two_pieces, const struct unit_type *type)
{
    *f = (struct fixture){0};
    int pieces = 0;
    for (int u = 0; u < UNITS; u++) {
        struct unit *unit = &f->units[u];
        *unit = (struct unit){.type = u == 0           ? &embedding
                                      : u == UNITS - 1 ? &head
                                                       : type,
                              .use_count = 2,
                              .uses = {2 * u, 2 * u + 1}};
        snprintf(unit->name, sizeof unit->name, "u%d", u);
        for (int p = 2 * u; p < 2 * u + 2; p++) {
            if (p % 2 == 0 || two_pieces) {
                f->pieces[pieces].first_param = p;
                snprintf(f->pieces[pieces].name, UNIT_NAME, "p%d", pieces);
                pieces++;
            }
            f->pieces[pieces - 1].param_count++;
            f->tensors[p] = (struct unit_tensor){.dims = 1, .shape = {ELEMENTS}};
            snprintf(f->tensors[p].name, UNIT_NAME, "t%d", p);
            f->params[p] = (struct unit_param){p, 1, pieces - 1};
        }
    }
    f->graph = (struct unit_graph){.tensors = f->tensors,
                                   .params = f->params,
                                   .pieces = f->pieces,
                                   .units = f->units,
                                   .tensor_count = PARAMS,
                                   .param_count = PARAMS,
                                   .piece_count = pieces,
                                   .unit_count = UNITS,
                                   .stream_width = 1};
    unit_graph_check(&f->graph);
}

/* The params of each piece: "2 4 4 6". */
static const char *merged_text(const struct fixture *f, struct unit_merge merge, const int *part_of)
{
    static char text[256];
    struct env env = testing_env(1);
    struct unit_merged merged;
    size_t used = 0;
    assert_ok(unit_merge_pieces(&env, &f->graph, &merge, part_of, &merged));
    unit_graph_check(&merged.graph);
    assert_ptr_equal(merged.graph.units, f->graph.units);
    assert_ptr_equal(merged.graph.tensors, f->graph.tensors);
    for (int i = 0; i < merged.graph.piece_count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", i > 0 ? " " : "",
                                 merged.graph.pieces[i].param_count);
    unit_merged_free(&env, &merged);
    assert_int_equal(mem_total(env.mem), 0);
    env_destroy(&env);
    return text;
}

static void test_units(void **state)
{
    (void)state;
    struct fixture f;
    fill(&f, false, &block);
    assert_string_equal(merged_text(&f, (struct unit_merge){0}, NULL), "2 2 2 2 2 2 2 2");
    assert_string_equal(merged_text(&f, (struct unit_merge){.units = 1}, NULL), "2 2 2 2 2 2 2 2");
    assert_string_equal(merged_text(&f, (struct unit_merge){.units = 2}, NULL), "2 4 4 4 2");
    assert_string_equal(merged_text(&f, (struct unit_merge){.units = 4}, NULL), "2 8 4 2");
    assert_string_equal(merged_text(&f, (struct unit_merge){.units = 99}, NULL), "2 12 2");
}

/* A piece of a unit needs 2 ROOM elements. */
static void test_elements(void **state)
{
    (void)state;
    struct fixture f;
    fill(&f, false, &block);
    struct unit_merge merge = {.elements = 4 * ROOM - 1};
    assert_string_equal(merged_text(&f, merge, NULL), "2 2 2 2 2 2 2 2");
    merge.elements = 4 * ROOM;
    assert_string_equal(merged_text(&f, merge, NULL), "2 4 4 4 2");
    merge.elements = 9 * ROOM;
    assert_string_equal(merged_text(&f, merge, NULL), "2 8 4 2");
    merge.units = 6; /* the larger of both */
    assert_string_equal(merged_text(&f, merge, NULL), "2 12 2");
}

static void test_several_pieces_of_a_unit(void **state)
{
    (void)state;
    struct fixture f;
    fill(&f, true, &block);
    assert_string_equal(merged_text(&f, (struct unit_merge){.units = 3}, NULL), "2 6 6 2");
    assert_string_equal(merged_text(&f, (struct unit_merge){.elements = 3 * ROOM}, NULL),
                        "2 3 3 3 3 2");
    fill(&f, true, &half_frozen); /* no two adjacent pieces are written alike */
    assert_string_equal(merged_text(&f, (struct unit_merge){.units = 3}, NULL),
                        "2 1 1 1 1 1 1 1 1 1 1 1 1 2");
}

static void test_parts_stay_apart(void **state)
{
    (void)state;
    static const int part_of[UNITS] = {0, 0, 0, 0, 1, 1, 1, 1};
    struct fixture f;
    fill(&f, false, &block);
    assert_string_equal(merged_text(&f, (struct unit_merge){.units = 2}, part_of), "2 4 2 4 2 2");
    assert_string_equal(merged_text(&f, (struct unit_merge){.elements = 1 << 20}, part_of),
                        "2 6 6 2");
}

/* A piece that two units use is joined to none. */
static void test_tied(void **state)
{
    (void)state;
    struct fixture f;
    fill(&f, false, &block);
    f.units[5].uses[2] = 4; /* of unit 2 */
    f.units[5].use_count = 3;
    assert_string_equal(merged_text(&f, (struct unit_merge){.units = 99}, NULL), "2 2 2 8 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units),
        cmocka_unit_test(test_elements),
        cmocka_unit_test(test_several_pieces_of_a_unit),
        cmocka_unit_test(test_parts_stay_apart),
        cmocka_unit_test(test_tied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
