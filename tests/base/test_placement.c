/* The slices of ranks on machines of several shapes, and that threads inherit what is bound. */
#include "base/placement.h"
#include <pthread.h>
#include "testing.h"

/* `nodes` nodes of `cores` cores with `each` hyper-threads. CPU c is in core c % all, as on x86. */
static struct topology machine(int nodes, int cores, int each)
{
    struct topology t = {.core_count = nodes * cores, .node_count = nodes};
    for (int core = 0; core < nodes * cores; core++)
        for (int h = 0; h < each; h++)
            t.cpus[t.count++] = (struct topology_cpu){h * nodes * cores + core, core, core / cores};
    for (int n = 0; n < nodes; n++)
        t.nodes[n] = n;
    return t;
}

/* The slices of all ranks, with | between them. They must not overlap. */
static void expect(const struct topology *t, int ranks, int threads, const char *list)
{
    char out[1024] = "";
    cpu_set_t slice, used, both;
    CPU_ZERO(&used);
    for (int r = 0; r < ranks; r++) {
        if (!placement_slice(t, ranks, threads, r, &slice)) {
            assert_string_equal("none", list);
            continue;
        }
        CPU_AND(&both, &used, &slice);
        assert_int_equal(CPU_COUNT(&both), 0);
        CPU_OR(&used, &used, &slice);
        assert_true(CPU_COUNT(&slice) >= threads);
        size_t length = strlen(out);
        snprintf(out + length, sizeof out - length, "%s", r ? "|" : "");
        length = strlen(out);
        topology_print(&slice, out + length, sizeof out - length);
    }
    if (*out)
        assert_string_equal(out, list);
}

static void test_one_node(void **state)
{
    struct topology t = machine(1, 16, 1);
    (void)state;
    expect(&t, 1, 16, "0-15");
    expect(&t, 4, 4, "0-3|4-7|8-11|12-15");
    expect(&t, 4, 1, "0-3|4-7|8-11|12-15");
    expect(&t, 16, 1, "0|1|2|3|4|5|6|7|8|9|10|11|12|13|14|15");
    expect(&t, 3, 5, "0-4|5-9|10-15");
    expect(&t, 17, 1, "none"); /* more ranks than CPUs */
    expect(&t, 4, 5, "none");  /* more threads */
    expect(&t, 3, 6, "none");  /* for two of them */
}

static void test_nodes(void **state)
{
    struct topology t = machine(2, 8, 1), four = machine(4, 4, 1);
    (void)state;
    expect(&t, 2, 8, "0-7|8-15");
    expect(&t, 4, 4, "0-3|4-7|8-11|12-15");
    expect(&t, 6, 2, "0-1|2-4|5-7|8-9|10-12|13-15");
    expect(&t, 3, 5, "0-4|5-9|10-15"); /* no way within the nodes */
    expect(&four, 2, 8, "0-7|8-15");   /* whole nodes */
    expect(&four, 5, 3, "0-2|3-5|6-8|9-11|12-15");
    expect(&four, 6, 2, "0-1|2-3|4-5|6-7|8-11|12-15"); /* the flat cut would cross: 2-4 */
}

/* A cpuset may have other numbers of cores in each node. */
static void test_uneven_nodes(void **state)
{
    struct topology t = machine(2, 8, 1);
    (void)state;
    memmove(t.cpus, t.cpus + 4, 12 * sizeof *t.cpus); /* four cores and eight */
    t.count = t.core_count = 12;
    for (int i = 0; i < 12; i++)
        t.cpus[i].core -= 4;
    expect(&t, 3, 4, "4-7|8-11|12-15");
    expect(&t, 2, 6, "4-9|10-15");
    expect(&t, 12, 1, "4|5|6|7|8|9|10|11|12|13|14|15");
}

static void test_hyper_threads(void **state)
{
    struct topology t = machine(2, 2, 2), odd = machine(1, 3, 2);
    (void)state;
    expect(&t, 1, 8, "0-7");
    expect(&t, 2, 4, "0-1,4-5|2-3,6-7");
    expect(&t, 4, 1, "0,4|1,5|2,6|3,7"); /* whole cores first */
    expect(&t, 4, 2, "0,4|1,5|2,6|3,7");
    expect(&t, 8, 1, "0|4|1|5|2|6|3|7"); /* two ranks on a core */
    expect(&t, 3, 2, "0,4|1,5|2-3,6-7");
    expect(&t, 5, 1, "0|4|1,5|2,6|3,7");
    expect(&odd, 2, 2, "0,3|1-2,4-5");
    expect(&odd, 2, 3, "0-1,3|2,4-5"); /* as many threads as CPUs need half a core */
}

/* The CPUs of a GPU's node, which has the system's number 8. */
static void test_near(void **state)
{
    struct topology t = machine(2, 2, 2);
    cpu_set_t slice;
    char list[32];
    (void)state;
    t.nodes[1] = 8;
    assert_true(placement_near(&t, 8, 2, &slice));
    topology_print(&slice, list, sizeof list);
    assert_string_equal(list, "2-3,6-7");
    assert_false(placement_near(&t, 8, 3, &slice)); /* more threads than cores */
    assert_false(placement_near(&t, 1, 1, &slice)); /* no such node, or none of its CPUs is ours */
    assert_false(placement_bind_near("", 1));       /* not a GPU */
}

static void *look(void *set)
{
    assert_int_equal(sched_getaffinity(0, sizeof(cpu_set_t), set), 0);
    return NULL;
}

static void test_bind(void **state)
{
    cpu_set_t before, after, inherited;
    pthread_t thread;
    (void)state;
    look(&before);
    int cpus = CPU_COUNT(&before);
    assert_false(placement_bind(cpus + 1, 1, 0));
    assert_false(placement_bind(1, cpus + 1, 0));
    assert_false(placement_bind(1, 1, 0)); /* nobody to share with */
    assert_false(placement_bind(2, 1, -1));
    assert_false(placement_bind(2, 1, 2));
    setenv("OMP_PROC_BIND", "close", 1);
    assert_string_equal(placement_openmp(), "OMP_PROC_BIND");
    assert_false(placement_bind(cpus, 1, 0));
    setenv("OMP_PROC_BIND", "false", 1);
    assert_null(placement_openmp());
    look(&after);
    assert_true(CPU_EQUAL(&before, &after));

    if (cpus < 2) {
        testing_skip("ranks cannot have cores of their own on one CPU");
        return;
    }
    assert_true(placement_bind(cpus, 1, cpus - 1));
    look(&after);
    assert_int_equal(CPU_COUNT(&after), 1);
    assert_int_equal(pthread_create(&thread, NULL, look, &inherited), 0);
    pthread_join(thread, NULL);
    assert_true(CPU_EQUAL(&after, &inherited));
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_node),     cmocka_unit_test(test_nodes),
        cmocka_unit_test(test_uneven_nodes), cmocka_unit_test(test_hyper_threads),
        cmocka_unit_test(test_near),         cmocka_unit_test(test_bind),
    };
    unsetenv("OMP_PLACES");
    unsetenv("GOMP_CPU_AFFINITY");
    unsetenv("KMP_AFFINITY");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
