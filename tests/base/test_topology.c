/* Topologies are read from folders that the test makes in place of /sys. */
#include "base/topology.h"
#include "made_folder.h"

static cpu_set_t set_of(const char *list)
{
    cpu_set_t set;
    assert_true(topology_parse(list, &set));
    return set;
}

/* "CPU:core:node" of every CPU. */
static void expect(const char *allowed, const char *list)
{
    char out[1024] = "";
    struct topology t;
    cpu_set_t set = set_of(allowed);
    topology_read(made_folder(), &set, &t);
    for (int i = 0; i < t.count; i++)
        snprintf(out + strlen(out), sizeof out - strlen(out), "%s%d:%d:%d", i ? " " : "",
                 t.cpus[i].cpu, t.cpus[i].core, t.nodes[t.cpus[i].node]);
    assert_string_equal(out, list);
    assert_int_equal(t.core_count, t.count ? t.cpus[t.count - 1].core + 1 : 0);
    assert_int_equal(t.node_count, t.count ? t.cpus[t.count - 1].node + 1 : 0);
}

/* --- lists ---------------------------------------------------------------------------------- */

static void test_lists(void **state)
{
    static const char *const good[][2] = {
        {"0-3,8-11\n", "0-3,8-11"}, {"5", "5"},         {"", ""},     {"\n", ""},
        {"0,1,2,7", "0-2,7"},       {"7,0-2", "0-2,7"}, {"3-3", "3"}, {" 1-2 \n", "1-2"},
        {"1022-5000", "1022-1023"}, {"9999", ""},
    };
    static const char *const bad[] = {"a",  "1-",    "-1",    "3-1", "1,,2",
                                      "1,", "0-3 8", "1-2-3", "0x3"};
    char out[64];
    cpu_set_t set;
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        set = set_of(good[i][0]);
        topology_print(&set, out, sizeof out);
        assert_string_equal(out, good[i][1]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(topology_parse(bad[i], &set));
    set = set_of("0,2,4,6,8,10,12,14,16,18");
    topology_print(&set, out, 8); /* cut, with its end */
    assert_string_equal(out, "0,2,4,6");
}

/* --- machines ------------------------------------------------------------------------------- */

static void test_no_files(void **state)
{
    (void)state;
    expect("0-2,5", "0:0:0 1:1:0 2:2:0 5:3:0");
    expect("", "");
}

/* Two nodes with two cores of two hyper-threads: CPU n shares the core of n + 4. */
static void put_pairs(void)
{
    made_put("0-7\n", "devices/system/cpu/online");
    for (int c = 0; c < 8; c++) {
        char pair[16];
        snprintf(pair, sizeof pair, "%d,%d\n", c % 4, c % 4 + 4);
        made_put(pair, "devices/system/cpu/cpu%d/topology/thread_siblings_list", c);
    }
    made_put("0-1,4-5\n", "devices/system/node/node0/cpulist");
    made_put("2-3,6-7\n", "devices/system/node/node1/cpulist");
    made_put("0-1\n", "devices/system/node/online"); /* a file that is no node */
    made_put("1\n", "devices/system/node/nodes/cpulist");
}

static void test_pairs(void **state)
{
    (void)state;
    put_pairs();
    expect("0-7", "0:0:0 4:0:0 1:1:0 5:1:0 2:2:1 6:2:1 3:3:1 7:3:1");
    expect("0-1023", "0:0:0 4:0:0 1:1:0 5:1:0 2:2:1 6:2:1 3:3:1 7:3:1");
    expect("6-7", "6:0:1 7:1:1");         /* a cpuset of the second hyper-threads */
    expect("1,5-6", "1:0:0 5:0:0 6:1:1"); /* half of a core */
}

static void test_offline(void **state)
{
    (void)state;
    put_pairs();
    made_put("0,2-5,7\n", "devices/system/cpu/online");
    made_put(
        "0\n",
        "devices/system/cpu/cpu0/topology/thread_siblings_list"); /* 4 went offline and came back */
    expect("0-7", "0:0:0 4:0:0 5:1:0 2:2:1 3:3:1 7:3:1");
}

/* Numbers of nodes have gaps, one node has memory only, and a CPU is in none. */
static void test_odd_nodes(void **state)
{
    char nodes[32];
    struct topology t;
    cpu_set_t set = set_of("0-6");
    (void)state;
    made_put("0-6\n", "devices/system/cpu/online");
    made_put("4-5\n", "devices/system/node/node0/cpulist");
    made_put("0-3\n", "devices/system/node/node8/cpulist");
    made_put("\n", "devices/system/node/node16/cpulist");
    made_put("x\n", "devices/system/node/node3/cpulist");
    expect("0-6", "4:0:0 5:1:0 6:2:0 0:3:8 1:4:8 2:5:8 3:6:8");
    topology_read(made_folder(), &set, &t);
    topology_print_nodes(&t, nodes, sizeof nodes);
    assert_string_equal(nodes, "0,8");
}

/* Damaged files count as missing. */
static void test_damage(void **state)
{
    (void)state;
    made_put("many\n", "devices/system/cpu/online");
    made_put("0,2-\n", "devices/system/cpu/cpu0/topology/thread_siblings_list");
    made_put("5\n", "devices/system/cpu/cpu1/topology/thread_siblings_list"); /* not itself */
    expect("0-1", "0:0:0 1:1:0");
}

static void test_pci(void **state)
{
    static const char *const bad[] = {"",
                                      " of host",
                                      "0000:1c:00.0",
                                      "0000:1d:00.0 of host",
                                      "0000:1e:00.0",
                                      "a-name-that-is-no-address-of-any-device"};
    (void)state;
    made_put("1\n", "bus/pci/devices/0000:1b:00.0/numa_node");
    made_put("-1\n", "bus/pci/devices/0000:1c:00.0/numa_node");
    made_put("x\n", "bus/pci/devices/0000:1d:00.0/numa_node");
    assert_int_equal(topology_pci_node(made_folder(), "0000:1B:00.0 of host"), 1);
    assert_int_equal(topology_pci_node(made_folder(), "0000:1b:00.0"), 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(topology_pci_node(made_folder(), bad[i]), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test_setup_teardown(test_no_files, made_start, made_stop),
        cmocka_unit_test_setup_teardown(test_pairs, made_start, made_stop),
        cmocka_unit_test_setup_teardown(test_offline, made_start, made_stop),
        cmocka_unit_test_setup_teardown(test_odd_nodes, made_start, made_stop),
        cmocka_unit_test_setup_teardown(test_damage, made_start, made_stop),
        cmocka_unit_test_setup_teardown(test_pci, made_start, made_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
