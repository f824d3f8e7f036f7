/* Profiles of machines: presets, files written and read again, halves that are merged, and
 * everything that is refused. */
#include "testing.h"
#include <math.h>
#include <unistd.h>
#include "base/file.h"
#include "plan/machine_file.h"
#include "plan/machine.h"

struct rig {
    struct env env;
    char folder[64], path[128];
};

static int open_rig(void **state)
{
    static struct rig rig;
    rig.env = testing_env(1);
    strcpy(rig.folder, "/tmp/sifr-test-XXXXXX");
    assert_non_null(mkdtemp(rig.folder));
    snprintf(rig.path, sizeof rig.path, "%s/machine.json", rig.folder);
    *state = &rig;
    return 0;
}

static int close_rig(void **state)
{
    struct rig *rig = *state;
    unlink(rig->path);
    rmdir(rig->folder);
    env_destroy(&rig->env); /* all memory has been freed */
    return 0;
}

static void expect_error(struct rig *rig, const char *part)
{
    const char *error = log_first_error(rig->env.log);
    if (!strstr(error, part))
        fail_msg("expected '%s' in '%s'", part, error);
    log_error_clear(rig->env.log);
}

/* Seconds of a product with SwiGLU */
static double price_of_swiglu(struct rig *rig, const struct machine_profile *profile)
{
    const struct ops_case c = {"linear_swiglu", .rows = 4096, .linear = {.in = 1024, .out = 8192},
                               .act = true};
    struct device *device;
    struct ops *ops;
    assert_ok(device_create(&rig->env, "dry", 0, &device));
    assert_ok(ops_create(device, "ref", DTYPE_BF16, &ops));
    double seconds = ops_price(&profile->ops, ops, &c);
    ops_destroy(ops);
    device_destroy(device);
    return seconds;
}

/* --- presets -------------------------------------------------------------------------------- */

static void test_presets(void **state)
{
    struct rig *rig = *state;
    struct machine_profile profile;
    int count = 0;
    for (; machine_preset_name(count); count++) {
        assert_true(*machine_preset_words(machine_preset_name(count)));
        assert_ok(machine_profile_load(&rig->env, machine_preset_name(count), &profile));
        assert_string_equal(profile.name, machine_preset_name(count));
        assert_true(profile.gpu && profile.has_ops && profile.has_comm);
        assert_true(profile.memory_bytes >= 40000000000 && profile.comm.node == 8);
        assert_true(profile.comm.inside.bytes_per_second > profile.comm.between.bytes_per_second);
        assert_true(profile.offload.link > profile.offload.disk_read);
        assert_true(profile.offload.disk_read >= profile.offload.disk_write);
        assert_true(profile.offload.disk_write > 0 && profile.offload.host_update > 0);
        for (int k = 0; k < OPS_KIND_COUNT; k++)
            assert_true(profile.ops.rates[k].flops_per_second > 0 &&
                        profile.ops.rates[k].bytes_per_second > 0);
        double swiglu = price_of_swiglu(rig, &profile);
        assert_ok(machine_profile_save(&rig->env, &profile, rig->path)); /* printing works */
        machine_profile_free(&rig->env, &profile);
        assert_ok(machine_profile_load(&rig->env, rig->path, &profile));
        assert_true(price_of_swiglu(rig, &profile) == swiglu);
        assert_string_equal(profile.name, machine_preset_name(count));
        machine_profile_free(&rig->env, &profile);
        unlink(rig->path);
    }
    assert_true(count >= 4);
    assert_string_equal(machine_preset_words("nothing"), "");
    assert_int_equal(machine_profile_load(&rig->env, "h300", &profile), STATUS_CONFIG);
    expect_error(rig, "unknown machine 'h300', and no such file; use h200, h100, ");
    /* A file that is named as a profile and is none is a configuration error, as with YAML files.
     */
    assert_int_equal(machine_profile_load(&rig->env, rig->path, &profile), STATUS_CONFIG);
    expect_error(rig, rig->path);
    assert_ok(file_write_atomic(&rig->env, rig->path, "my notes\n", 9));
    assert_int_equal(machine_profile_load(&rig->env, rig->path, &profile), STATUS_CONFIG);
    expect_error(rig, rig->path);
}

/* --- files ---------------------------------------------------------------------------------- */

static void fill(struct machine_profile *profile, struct ops_measured *calls)
{
    *profile = (struct machine_profile){.name = "mine \"2\"", .memory_bytes = 12345};
    for (int k = 0; k < OPS_KIND_COUNT; k++)
        profile->ops.rates[k] = (struct ops_rate){1e-6 * (k + 1), 1e11 / (k + 1), 1e10 / 3};
    profile->ops.f32_times[OPS_KIND_PRODUCT] = 2.5; /* the other kinds have none */
    profile->ops.swiglu_alone = true;
    profile->capability = 90;
    calls[0] = (struct ops_measured){{.op = "linear_dw",
                                      .rows = 7,
                                      .linear = {13, 5, .out_in = true},
                                      .bias = true,
                                      .add = true},
                                     DTYPE_F32,
                                     1.0 / 3};
    calls[1] = (struct ops_measured){
        {.op = "add_norm", .rows = 9, .norm = {NORM_RMS, 32, 1e-5, 0}, .branch = true},
        DTYPE_BF16,
        2e-5};
    calls[2] = (struct ops_measured){
        {.op = "attention", .attention = OPS_HEADS(2, 16, 4, 2, 8)}, DTYPE_F32, 3e-5};
    calls[3] = (struct ops_measured){
        {.op = "cast", .count = 1 << 20, .from = DTYPE_F32, .to = DTYPE_BF16}, DTYPE_F32, 4e-5};
    calls[4] = (struct ops_measured){
        {.op = "embedding", .embedding = {2, 16, 8, 100, 16, 100, 200, false}, .first = 3},
        DTYPE_F32,
        5e-5};
    calls[5] =
        (struct ops_measured){{.op = "find_nonfinite", .count = 64, .bad = -1}, DTYPE_F32, 6e-5};
    calls[6] = (struct ops_measured){{.op = "tree_sums", .count = 64, .level = 3}, DTYPE_F32, 7e-5};
    profile->ops.measured = calls;
    profile->ops.measured_count = 7;
    profile->copy_bytes_per_second = 1.25e10;
    profile->offload = (struct machine_offload){0, 3e9, 2e9, 1e11};
    profile->has_ops = true;
    profile->ops_ranks = (struct machine_ranks){3, 2};
}

static void fill_comm(struct machine_profile *profile)
{
    *profile = (struct machine_profile){.name = "mine",
                                        .capability = 90,
                                        .comm = {.inside = {1e-5, 2e-6, 3e9},
                                                 .between = {2e-5, 4e-6, 1e9},
                                                 .node = 4,
                                                 .exchange = 5e-5,
                                                 .theft = 0.75,
                                                 .sum_bytes_per_second = 6e9},
                                        .has_comm = true,
                                        .comm_ranks = {5, 4}};
}

static const struct ops_measured *find(const struct machine_profile *profile, const char *op)
{
    for (int i = 0; i < profile->ops.measured_count; i++) {
        if (strcmp(profile->ops.measured[i].shape.op, op) == 0)
            return &profile->ops.measured[i];
    }
    fail_msg("no %s", op);
    return NULL;
}

static void test_save_and_load(void **state)
{
    struct rig *rig = *state;
    struct ops_measured calls[7];
    struct machine_profile ops, comm, read;
    fill(&ops, calls);
    fill_comm(&comm);
    assert_ok(machine_profile_save(&rig->env, &ops, rig->path));
    assert_ok(machine_profile_load(&rig->env, rig->path, &read));
    assert_true(read.has_ops && !read.has_comm);
    machine_profile_free(&rig->env, &read);
    assert_ok(machine_profile_save(&rig->env, &comm, rig->path)); /* keeps the other half */
    assert_ok(machine_profile_load(&rig->env, rig->path, &read));
    assert_true(read.has_ops && read.has_comm && !read.gpu);
    assert_string_equal(read.name, "mine");
    assert_int_equal(read.memory_bytes, 12345);
    assert_memory_equal(read.ops.rates, ops.ops.rates, sizeof ops.ops.rates);
    assert_memory_equal(read.ops.f32_times, ops.ops.f32_times, sizeof ops.ops.f32_times);
    assert_true(read.ops.swiglu_alone);
    assert_int_equal(read.capability, 90);
    assert_memory_equal(&read.comm.inside, &comm.comm.inside, sizeof comm.comm.inside);
    assert_memory_equal(&read.comm.between, &comm.comm.between, sizeof comm.comm.between);
    assert_true(read.comm.node == 4 && read.comm.exchange == 5e-5 && read.comm.theft == 0.75 &&
                read.comm.sum_bytes_per_second == 6e9);
    assert_true(read.copy_bytes_per_second == 1.25e10);
    assert_memory_equal(&read.offload, &ops.offload, sizeof ops.offload);
    assert_true(read.ops_ranks.ranks == 3 && read.ops_ranks.threads == 2);
    assert_true(read.comm_ranks.ranks == 5 && read.comm_ranks.threads == 4);
    assert_int_equal(read.ops.measured_count, 7);
    for (int i = 0; i < 7; i++) {
        char a[OPS_CASE_NAME], b[OPS_CASE_NAME];
        const struct ops_measured *got = find(&read, calls[i].shape.op);
        assert_string_equal(ops_case_name(&got->shape, a), ops_case_name(&calls[i].shape, b));
        assert_true(got->type == calls[i].type && got->seconds == calls[i].seconds);
    }
    const struct ops_case *norm = &find(&read, "add_norm")->shape;
    assert_true(norm->norm.kind == NORM_RMS && norm->norm.eps == 1e-5 && norm->branch);
    assert_int_equal(find(&read, "find_nonfinite")->shape.bad, -1);
    assert_int_equal(find(&read, "embedding")->shape.first, 3);
    machine_profile_free(&rig->env, &read);
    struct ops_measured again[2] = {calls[2], calls[2]}; /* one measured again, one new */
    again[0].seconds = 0.5;
    again[1].shape.attention.batch = 3;
    ops.ops.measured = again;
    ops.ops.measured_count = 2;
    assert_ok(machine_profile_save(&rig->env, &ops, rig->path));
    assert_ok(machine_profile_load(&rig->env, rig->path, &read));
    assert_int_equal(read.ops.measured_count, 8);
    for (int i = 0; i < 8; i++)
        assert_true(read.ops.measured[i].shape.attention.batch != 2 ||
                    read.ops.measured[i].seconds == 0.5);
    machine_profile_free(&rig->env, &read);
    ops.gpu = true;
    assert_int_equal(machine_profile_save(&rig->env, &ops, rig->path), STATUS_CONFIG);
    expect_error(rig, "is the profile of a machine that computes on the CPU");
}

/* A profile of an earlier version has no rates of offload. */
static void test_older_files_lack_offload(void **state)
{
    struct rig *rig = *state;
    struct ops_measured calls[7];
    struct machine_profile ops, read;
    struct text text;
    fill(&ops, calls);
    text_init(&text, &rig->env);
    machine_file_print(&ops, &text);
    char *data = (char *)text_string(&text), *begin = strstr(data, ",\n  \"offload\"");
    assert_non_null(begin);
    char *end = strchr(begin, '}') + 1;
    memmove(begin, end, strlen(end) + 1);
    assert_ok(machine_file_parse(&rig->env, data, strlen(data), "older", &read));
    assert_true(read.has_ops && read.offload.disk_read == 0 && read.offload.link == 0);
    machine_profile_free(&rig->env, &read);
    text_free(&text);
}

/* machine_profile_check refuses what a save would refuse. */
static void test_check(void **state)
{
    struct rig *rig = *state;
    struct machine_profile comm;
    char beyond[160];
    const bool gpu = true, cpu = false;
    fill_comm(&comm);
    assert_ok(machine_profile_check(&rig->env, rig->path, &gpu));
    assert_false(file_exists(rig->path)); /* leaves no file */
    assert_int_equal(rmdir(rig->folder), 0);
    assert_int_equal(machine_profile_check(&rig->env, rig->path, NULL), STATUS_IO);
    expect_error(rig, "cannot write");
    assert_ok(dir_create(&rig->env, rig->folder));
    assert_int_equal(machine_profile_check(&rig->env, rig->folder, NULL), STATUS_CONFIG);
    expect_error(rig, "it is a folder");
    assert_ok(machine_profile_save(&rig->env, &comm, rig->path));
    assert_ok(machine_profile_check(&rig->env, rig->path, &cpu));
    assert_ok(machine_profile_check(&rig->env, rig->path, NULL));
    assert_int_equal(machine_profile_check(&rig->env, rig->path, &gpu), STATUS_CONFIG);
    expect_error(rig, "is the profile of a machine that computes on the CPU");
    snprintf(beyond, sizeof beyond, "%s/x", rig->path);
    assert_int_equal(machine_profile_check(&rig->env, beyond, NULL), STATUS_IO);
    expect_error(rig, beyond);
    assert_ok(file_write_atomic(&rig->env, rig->path, "my notes\n", 9));
    assert_int_equal(machine_profile_check(&rig->env, rig->path, NULL), STATUS_CONFIG);
    expect_error(rig, rig->path);
}

/* A save reads the existing file first: a file that is not a profile is not overwritten. */
static void test_save_keeps_other_files(void **state)
{
    struct rig *rig = *state;
    struct machine_profile comm;
    char *text;
    size_t bytes;
    fill_comm(&comm);
    assert_ok(file_write_atomic(&rig->env, rig->path, "my notes\n", 9));
    assert_int_equal(machine_profile_save(&rig->env, &comm, rig->path), STATUS_FORMAT);
    log_error_clear(rig->env.log);
    assert_ok(file_read(&rig->env, rig->path, 100, &text, &bytes));
    assert_string_equal(text, "my notes\n");
    mem_free(&rig->env, text);
}

/* --- what is refused ------------------------------------------------------------------------ */

/* The valid file with `from` replaced by `to`. */
static enum status parse_changed(struct rig *rig, const char *from, const char *to)
{
    struct ops_measured calls[7];
    struct machine_profile profile, comm, read;
    struct text good, bad;
    fill(&profile, calls);
    fill_comm(&comm);
    profile.comm = comm.comm;
    profile.comm_ranks = comm.comm_ranks;
    profile.has_comm = true;
    text_init(&good, &rig->env);
    text_init(&bad, &rig->env);
    machine_file_print(&profile, &good);
    const char *data = text_string(&good), *at = strstr(data, from);
    if (!at)
        fail_msg("no '%s' in %s", from, data);
    text_add_bytes(&bad, data, (size_t)(at - data));
    text_add(&bad, to);
    text_add(&bad, at + strlen(from));
    enum status st = machine_file_parse(&rig->env, bad.data, bad.bytes, "m.json", &read);
    if (st == STATUS_OK)
        machine_profile_free(&rig->env, &read);
    text_free(&good);
    text_free(&bad);
    return st;
}

static void test_refused(void **state)
{
    static const struct {
        const char *from, *to, *says;
    } rows[] = {
        {"sifr machine", "sifr checkpoint", "'m.json' is not a machine profile"},
        {"\"version\": 1", "\"version\": 2", "has version 2; this sifr reads version 1"},
        {"\"gpu\": false", "\"gpu\": 0", "\"gpu\" is not true or false"},
        {"\"gpu\": false", "\"cart\": 1, \"gpu\": false", "unknown key \"cart\" in the profile"},
        {"12345", "-1", "\"memory_bytes\" is not a whole number"},
        {"12345", "1.5", "\"memory_bytes\" is not a whole number"},
        {"\"mine", "\"0123456789012345678901234567890123456789012345678901234567890123",
         "\"name\" is not a string of less than 64 bytes"},
        {"\"mine", "\"\\u001b[31mmine", "'m.json': \"name\" has control characters"},
        {"\"mine", "\"mi\\nne", "\"name\" has control characters"},
        {"\"mine", "\"mine\x7f", "\"name\" has control characters"},
        {"\"mine", "\"mine\\u009b", "\"name\" has control characters"},
        {"\"latency\": ", "\"latency\": -", "\"latency\" in inside is not a non-negative number"},
        {"\"theft\": 0.75", "\"theft\": \"0.75\"",
         "\"theft\" in comm is not a non-negative number"},
        {"\"node\": 4", "\"node\": 4.0", "\"node\" is not a whole number"},
        {"\"theft\": 0.75, ", "", "\"theft\" in comm is not a non-negative number"},
        {"\"exchange\"", "\"exchanges\"", "unknown key \"exchanges\" in comm"},
        {"\"attention\": {", "\"attentions\": {", "unknown key \"attentions\" in ops.rates"},
        {"\"f32_times\": {\"product\"", "\"f32_times\": {\"products\"",
         "unknown key \"products\" in ops.f32_times"},
        {"\"product\": 2.5", "\"product\": 0",
         "\"product\" in ops.f32_times is not a positive number"},
        {"\"f32_times\": {\"product\": 2.5}", "\"f32_times\": 2", "is missing, or not an object"},
        {"\"capability\": 90", "\"capability\": -1", "\"capability\" is not a whole number"},
        {"\"swiglu_alone\": true", "\"swiglu_alone\": 1",
         "\"swiglu_alone\" in ops is not true or false"},
        {"\"call\"", "\"calls\"", "unknown key \"calls\" in product"},
        {"\"link_bytes_per_second\": ", "\"link_bytes_per_second\": -1",
         "\"link_bytes_per_second\" in offload is not a non-negative number"},
        {"\"host_update_bytes_per_second\"", "\"host\"", "unknown key \"host\" in offload"},
        {"\"copy_bytes_per_second\": ", "\"copy_bytes_per_second\": -",
         "\"copy_bytes_per_second\" in ops is not a positive number"},
        {"\"measured\": [", "\"measured\": [3, ", "ops.measured[0]: \"op\" is not an operation"},
        {"linear_dw", "linear_dv", "ops.measured[0]: \"op\" is not an operation"},
        {"\"rows\": 7", "\"rows\": -7", "ops.measured[0]: invalid value of \"rows\""},
        {"\"rows\": 7", "\"rows\": 0", "ops.measured[0]: invalid shape for linear_dw"},
        {"\"rows\": 7", "\"row\": 7", "ops.measured[0]: unknown key \"row\""},
        {"\"rows\": 7", "\"rows\": 900000000000000", "invalid shape for linear_dw"},
        {"\"rms\"", "\"root\"", "ops.measured[1]: invalid value of \"norm.kind\""},
        {"\"attention.kv_heads\": 2", "\"attention.kv_heads\": 3", "invalid shape for attention"},
        {"\"to\": \"bf16\"", "\"to\": \"bf17\"", "invalid value of \"to\""},
        {"\"bias\": true", "\"bias\": 1", "invalid value of \"bias\""},
        {"\"seconds\": ", "\"seconds\": -",
         "ops.measured[0]: \"seconds\" is not a positive number"},
        {"\"seconds\": 0.3", "\"seconds\": 1e-300",
         "ops.measured[0]: \"seconds\" is not a positive number"},
        {"\"theft\": 0.75", "\"theft\": 1e25", "\"theft\" in comm is not a non-negative number"},
        {"\"sum_bytes_per_second\": 6000000000", "\"sum_bytes_per_second\": 1e-300",
         "\"sum_bytes_per_second\" in comm is not a positive number"},
        {"\"type\": \"f32\"", "\"type\": 32", "ops.measured[0]: \"type\" is not a type"},
        {"\"node\": 4", "\"node\": 4, \"node\": 4", "duplicate"},
        {"\"ranks\": 3", "\"ranks\": -3", "\"ranks\" is not a whole number"},
        {"\"threads\": 4", "\"threads\": \"4\"", "\"threads\" is not a whole number"},
        {"\"theft\": 0.75", "\"theft\": 1e999", "m.json' line"},
        {"{", "[", "'m.json' line 2"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(parse_changed(*state, rows[i].from, rows[i].to), STATUS_FORMAT);
        expect_error(*state, rows[i].says);
    }
    assert_ok(parse_changed(*state, "mine", "yours"));
    assert_ok(parse_changed(*state, "mine", "\u00e9\u00a0\u0142")); /* non-ASCII letters */
    /* The first files contain neither ranks and threads nor f32_times nor swiglu_alone. */
    assert_ok(parse_changed(*state, "\"swiglu_alone\": true, ", ""));
    assert_ok(parse_changed(*state, "\"f32_times\": {\"product\": 2.5},", ""));
    assert_ok(parse_changed(*state, "\"ranks\": 3, \"threads\": 2, ", ""));
    assert_ok(parse_changed(*state, "\"ranks\": 5, \"threads\": 4, ", ""));
}

/* --- fits ----------------------------------------------------------------------------------- */

static void test_fit_rate(void **state)
{
    static const struct ops_rate truth = {3e-6, 5e11, 2e10};
    struct fit_call calls[40];
    (void)state;
    for (int i = 0; i < 40; i++) {
        double flops = pow(10, 3 + i % 8), bytes = pow(10, 2 + i % 5 * 1.5);
        double noise = 1 + 0.02 * ((i * 7 % 11) / 5.0 - 1);
        calls[i] = (struct fit_call){flops, bytes,
                                     noise * (truth.call + fmax(flops / truth.flops_per_second,
                                                                bytes / truth.bytes_per_second))};
    }
    struct ops_rate rate = machine_fit_rate(calls, 40);
    assert_true(fabs(rate.call / truth.call - 1) < 0.03);
    assert_true(fabs(rate.flops_per_second / truth.flops_per_second - 1) < 0.03);
    assert_true(fabs(rate.bytes_per_second / truth.bytes_per_second - 1) < 0.03);
    assert_true(machine_fit_rate_error(rate, calls, 40) < 1.05);
    calls[3].seconds *= 20; /* a disturbed measurement */
    rate = machine_fit_rate(calls, 40);
    assert_true(fabs(rate.flops_per_second / truth.flops_per_second - 1) < 0.05);
    assert_true(machine_fit_rate(calls, 0).flops_per_second == 0);
}

static void test_fit_wire(void **state)
{
    struct fit_message calls[20];
    (void)state;
    for (int i = 0; i < 20; i++) {
        int messages = i % 2 ? 7 : 1;
        double bytes = 1024 * pow(4, i / 2);
        calls[i] = (struct fit_message){messages, bytes, 1e-5 + 2e-6 * messages + bytes / 4e9};
    }
    struct comm_wire wire = machine_fit_wire(calls, 20);
    assert_true(fabs(wire.latency / 1e-5 - 1) < 0.1 && fabs(wire.message / 2e-6 - 1) < 0.1);
    assert_true(fabs(wire.bytes_per_second / 4e9 - 1) < 0.02);
    assert_true(machine_fit_wire_error(wire, calls, 20) < 1.05);
    for (int i = 0; i < 20; i++) /* two ranks */
        calls[i] = (struct fit_message){1, calls[i].bytes, 1e-5 + calls[i].bytes / 4e9};
    wire = machine_fit_wire(calls, 20);
    assert_true(fabs((wire.latency + wire.message) / 1e-5 - 1) < 0.02);
    assert_true(wire.latency == wire.message);
}

static void test_median(void **state)
{
    double values[] = {5, 1, 4, 2, 3};
    (void)state;
    assert_true(machine_fit_median(values, 5) == 3);
    assert_true(machine_fit_median(values, 1) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_presets, open_rig, close_rig),
        cmocka_unit_test_setup_teardown(test_save_and_load, open_rig, close_rig),
        cmocka_unit_test_setup_teardown(test_older_files_lack_offload, open_rig, close_rig),
        cmocka_unit_test_setup_teardown(test_check, open_rig, close_rig),
        cmocka_unit_test_setup_teardown(test_save_keeps_other_files, open_rig, close_rig),
        cmocka_unit_test_setup_teardown(test_refused, open_rig, close_rig),
        cmocka_unit_test(test_fit_rate),
        cmocka_unit_test(test_fit_wire),
        cmocka_unit_test(test_median),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
