/* The mesh of ranks: coordinates, invalid meshes, nodes, the printed map, and the groups, with
 * threads as ranks. */
#include <pthread.h>
#include "comm/mesh.h"
#include "testing.h"

enum { MOST_RANKS = 16 };

/* --- coordinates ---------------------------------------------------------------------------- */

static void test_coordinates(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    for (int tp = 1; tp <= 4; tp++) {
        for (int pp = 1; pp <= 4; pp++) {
            for (int dp = 1; dp <= 4; dp++) {
                int rank = 0, size = tp * pp * dp;
                for (int d = 0; d < dp; d++)
                    for (int p = 0; p < pp; p++)
                        for (int t = 0; t < tp; t++, rank++) {
                            struct mesh mesh;
                            assert_ok(mesh_of(&env, size, rank, tp, pp, &mesh));
                            assert_true(mesh.dp == dp && mesh.d == d && mesh.p == p && mesh.t == t);
                            assert_int_equal(mesh_rank(&mesh, d, p, t), rank);
                        }
            }
        }
    }
    env_destroy(&env);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        int size, tp, pp;
        const char *why;
    } cases[] = {
        {8, 0, 1, "parallel.tp=0 is out of range; use 1 or more"},
        {8, 1, -1, "parallel.pp=-1 is out of range; use 1 or more"},
        {12, 5, 1, "parallel.tp=5 does not divide 12 ranks; try 4 or 6"},
        {1, 2, 1,
         "parallel.tp=2 needs more than the 1 rank of this job; start more (-n), or try 1"},
        {3, 1, 2, "parallel.pp=2 does not divide 3 ranks; try 1 or 3"},
        {1, 1, 2,
         "parallel.pp=2 needs more than the 1 rank of this job; start more (-n), or try 1"},
        {24, 2, 5, "parallel.pp=5 does not divide 12 groups of tp 2 (24 ranks); try 4 or 6"},
        {8, 4, 4,
         "parallel.pp=4 needs more than the 2 groups of tp 4 (8 ranks) of this job; start more "
         "(-n), "
         "or try 2"},
    };
    struct env env = testing_env(1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mesh mesh;
        assert_int_equal(mesh_of(&env, cases[i].size, 0, cases[i].tp, cases[i].pp, &mesh),
                         STATUS_CONFIG);
        if (strstr(log_first_error(env.log), cases[i].why) == NULL)
            fail_msg("'%s' is not in '%s'", cases[i].why, log_first_error(env.log));
        log_error_clear(env.log);
    }
    env_destroy(&env);
}

/* --- nodes ---------------------------------------------------------------------------------- */

static enum status check_hosts(struct env *env, int tp, const char *nodes)
{
    const char *hosts[MOST_RANKS];
    char names[MOST_RANKS][8];
    struct mesh mesh;
    int size = (int)strlen(nodes);
    for (int r = 0; r < size; r++) {
        snprintf(names[r], sizeof names[r], "node-%c", nodes[r]);
        hosts[r] = names[r];
    }
    assert_ok(mesh_of(env, size, 0, tp, 1, &mesh));
    return mesh_check_hosts(env, &mesh, hosts);
}

static void expect_refused(struct env *env, int tp, const char *nodes, const char *why)
{
    assert_int_equal(check_hosts(env, tp, nodes), STATUS_CONFIG);
    if (strstr(log_first_error(env->log), why) == NULL)
        fail_msg("'%s' is not in '%s'", why, log_first_error(env->log));
    log_error_clear(env->log);
}

static void test_nodes(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    assert_ok(check_hosts(&env, 4, "aaaabbbb"));
    assert_ok(check_hosts(&env, 2, "aaaabbcc"));
    assert_ok(check_hosts(&env, 1, "abababab"));
    assert_ok(check_hosts(&env, 2, "aabbaabb")); /* a node may appear twice */
    expect_refused(&env, 8, "aaaabbbb", "rank 0 is on 'node-a' and rank 4 on 'node-b'");
    expect_refused(&env, 8, "aaaabbbb", "try 4");
    expect_refused(&env, 4, "aaaaaabbbbbb", "ranks 4 to 7 form one TP group");
    expect_refused(&env, 4, "aaaaaabbbbbb", "try 3");
    expect_refused(&env, 2, "abababab", "with this placement, try 1");
    env_destroy(&env);
}

/* --- the map -------------------------------------------------------------------------------- */

static void test_map(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct mesh mesh;
    struct text text;
    text_init(&text, &env);
    assert_ok(mesh_of(&env, 8, 0, 2, 2, &mesh));
    mesh_print(&mesh, &text);
    assert_string_equal(text_string(&text), "8 ranks = dp 2 x pp 2 x tp 2\n"
                                            "                      stage 0        stage 1\n"
                                            "copy 0                    0-1            2-3\n"
                                            "copy 1                    4-5            6-7\n");
    text_clear(&text);
    assert_ok(mesh_of(&env, 131072, 0, 8, 64, &mesh)); /* the map of a large mesh stays readable */
    mesh_print(&mesh, &text);
    assert_true(text.bytes < 4000);
    assert_non_null(strstr(text_string(&text), "131072 ranks = dp 256 x pp 64 x tp 8\n"));
    assert_non_null(strstr(text_string(&text), "131064-131071\n"));
    assert_non_null(strstr(text_string(&text), "\n...\n"));
    text_free(&text);
    env_destroy(&env);
}

/* --- groups --------------------------------------------------------------------------------- */

struct member {
    pthread_t thread;
    struct comm_hub *hub;
    int rank, size, tp, pp;
    char wrong[256];
};

/* Check that the ranks of `group` are those of the mesh along this axis. */
static void check_group(struct member *m, struct comm *group, const char *axis, const int *expected,
                        int count)
{
    int all[MOST_RANKS];
    if (comm_size(group) != count ||
        comm_exchange(group, &m->rank, sizeof m->rank, all) != STATUS_OK ||
        memcmp(all, expected, (size_t)count * sizeof *all) != 0)
        snprintf(m->wrong, sizeof m->wrong, "rank %d of %d, tp %d, pp %d: the %s group", m->rank,
                 m->size, m->tp, m->pp, axis);
}

static void check_groups(struct member *m, const struct mesh *mesh,
                         const struct mesh_groups *groups)
{
    int expected[MOST_RANKS];
    for (int t = 0; t < mesh->tp; t++)
        expected[t] = mesh_rank(mesh, mesh->d, mesh->p, t);
    check_group(m, groups->tp, "tp", expected, mesh->tp);
    for (int p = 0; p < mesh->pp; p++)
        expected[p] = mesh_rank(mesh, mesh->d, p, mesh->t);
    check_group(m, groups->pp, "pp", expected, mesh->pp);
    for (int d = 0; d < mesh->dp; d++)
        expected[d] = mesh_rank(mesh, d, mesh->p, mesh->t);
    check_group(m, groups->dp, "dp", expected, mesh->dp);
}

static void *run_member(void *argument)
{
    struct member *m = argument;
    struct env env = testing_env(1);
    struct comm_config config = {.backend = "threads", .timeout = 60};
    struct device *device;
    struct comm *world = NULL;
    struct mesh mesh;
    struct mesh_groups groups = {0};
    assert_ok(device_create(&env, "cpu", 0, &device));
    snprintf(m->wrong, sizeof m->wrong, "rank %d did not finish", m->rank);
    if (comm_join(m->hub, m->rank, &config, device, &world) == STATUS_OK &&
        mesh_of(&env, m->size, m->rank, m->tp, m->pp, &mesh) == STATUS_OK &&
        mesh_groups_create(world, &mesh, &groups) == STATUS_OK) {
        m->wrong[0] = '\0';
        check_groups(m, &mesh, &groups);
    }
    mesh_groups_free(&groups);
    comm_destroy(world);
    device_destroy(device);
    env_destroy(&env);
    return NULL;
}

static void run_mesh(struct env *env, int tp, int pp, int dp)
{
    struct member members[MOST_RANKS];
    struct comm_hub *hub;
    int size = tp * pp * dp;
    assert_ok(comm_hub_create(env, size, &hub));
    for (int r = 0; r < size; r++) {
        members[r] = (struct member){.hub = hub, .rank = r, .size = size, .tp = tp, .pp = pp};
        assert_int_equal(pthread_create(&members[r].thread, NULL, run_member, &members[r]), 0);
    }
    for (int r = 0; r < size; r++)
        pthread_join(members[r].thread, NULL);
    for (int r = 0; r < size; r++)
        if (members[r].wrong[0] != '\0')
            fail_msg("%s", members[r].wrong);
    comm_hub_destroy(hub);
}

static void test_groups(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    for (int tp = 1; tp <= 4; tp++)
        for (int pp = 1; pp <= 4; pp++)
            for (int dp = 1; dp <= 4; dp++)
                if (tp * pp * dp <= MOST_RANKS)
                    run_mesh(&env, tp, pp, dp);
    env_destroy(&env);
}

/* Any rank of a large job, without the others; a failed allocation leaves nothing behind. */
static void test_dry_groups(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct device *device;
    struct comm *world;
    struct mesh mesh;
    struct mesh_groups groups;
    assert_ok(device_create(&env, "dry", 0, &device));
    assert_ok(comm_create_dry(device, 777, 1024, false, &world));
    assert_ok(mesh_of(&env, 1024, 777, 8, 16, &mesh));
    size_t bytes = mem_total(env.mem);
    for (int64_t n = 1;; n++) {
        mem_fail_at(env.mem, n);
        enum status st = mesh_groups_create(world, &mesh, &groups);
        if (st == STATUS_OK) {
            assert_true(n > 4);
            break;
        }
        assert_int_equal(st, STATUS_MEMORY);
        assert_int_equal(mem_total(env.mem), bytes);
    }
    assert_int_equal(comm_size(groups.tp), 8);
    assert_int_equal(comm_rank(groups.tp), 1);
    assert_int_equal(comm_size(groups.pp), 16);
    assert_int_equal(comm_rank(groups.pp), 97 % 16);
    assert_int_equal(comm_size(groups.dp), 8);
    assert_int_equal(comm_rank(groups.dp), 6);
    mesh_groups_free(&groups);
    comm_destroy(world);
    device_destroy(device);
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coordinates), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_nodes),       cmocka_unit_test(test_map),
        cmocka_unit_test(test_groups),      cmocka_unit_test(test_dry_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
