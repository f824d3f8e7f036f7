/* Offload in plans: a run's bytes on disk and what it moves equal the plan's; formulas hold
 * wherever state is; as little as possible leaves the device; a step takes longer as links are
 * slower. */
#include <math.h>

#include "plan/plan_time.h"
#include "plan/planned.h"
#include "plan/search_impl.h"
#include "plan/search_rig.h"

static const struct plan_offload_fixed all_fixed = {true, true, true, true}, open = {0};

/* --- a run ---------------------------------------------------------------------------------- */

static const struct zero_offload placements[] = {
    {.optimizer = FAR_DISK, .share = 1},
    {.optimizer = FAR_DISK, .share = 0.4},
    {.grads = FAR_DISK},
    {.optimizer = FAR_DISK, .grads = FAR_DISK, .share = 1},
    {.params = FAR_DISK},
    {.optimizer = FAR_DISK, .grads = FAR_DISK, .params = FAR_DISK, .share = 0.6},
};
enum { PLACEMENTS = sizeof placements / sizeof *placements };

static void test_runs_match_their_plan(void **state)
{
    (void)state;
    for (int i = 0; i < PLACEMENTS; i++)
        for (int stage = 0; stage < PLAN_ZERO_STAGES; stage++) {
            struct rig_config config = base_config(i % 2, 5);
            config.stage = stage;
            config.offload = placements[i];
            config.type = stage % 2 ? DTYPE_BF16 : DTYPE_F32;
            config.snapshot = i >= 3;
            config.model.freeze = i == 5 ? "*norm*,*.mlp.*" : "";
            run_and_compare(config, 1 + (i + stage) % 3);
        }
}

/* Each key has a place of its own. The CPU keeps what is on the host apart, as a GPU does. */
static void test_mixed_placements_match_their_plan(void **state)
{
    (void)state;
    static const struct zero_offload mixed[] = {
        {.optimizer = FAR_HOST, .params = FAR_DISK, .share = 0.6},
        {.optimizer = FAR_HOST, .grads = FAR_DISK, .params = FAR_HOST, .share = 0.3},
        {.optimizer = FAR_DISK, .grads = FAR_HOST, .params = FAR_HOST, .share = 1},
        {.grads = FAR_HOST, .params = FAR_DISK},
        {.grads = FAR_DISK, .params = FAR_HOST},
        {.optimizer = FAR_HOST, .grads = FAR_DISK, .share = 0.5, .on_host = true},
        {.optimizer = FAR_HOST, .params = FAR_DISK, .share = 0.5, .on_host = true},
    };
    setenv("SIFR_CPU_OFFLOAD", "1", 1);
    for (size_t i = 0; i < sizeof mixed / sizeof *mixed; i++)
        for (int stage = 0; stage < PLAN_ZERO_STAGES; stage++) {
            struct rig_config config = base_config(i % 2, stage % 2 ? 1 : 5);
            config.stage = stage;
            config.offload = mixed[i];
            config.type = mixed[i].on_host || stage < 2 ? DTYPE_BF16 : DTYPE_F32;
            run_and_compare(config, 1 + (int)(i + (size_t)stage) % 2);
        }
    unsetenv("SIFR_CPU_OFFLOAD");
}

static void test_optimizers_match_their_plan(void **state)
{
    (void)state;
    static const enum optimizer_kind kinds[] = {OPTIMIZER_ADAMW8BIT, OPTIMIZER_SGD, OPTIMIZER_MUON};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 4; k++) {
            static const int which[] = {0, 3, 4, 5};
            struct rig_config config = base_config(true, 4);
            config.stage = 1 + k % 2;
            config.optimizer = kinds[i];
            config.type = k == 2 ? DTYPE_F32 : DTYPE_BF16;
            config.offload = placements[which[k]];
            run_and_compare(config, 2);
        }
}

static void test_pipelines_match_their_plan(void **state)
{
    (void)state;
    struct rig_config config = base_config(true, 5);
    config.model.layers = 4;
    config.pp = 2;
    config.offload = placements[3];
    run_and_compare(config, 4);
    for (int tied = 0; tied < 2; tied++) { /* PP stages share a tied table, which stays */
        config.model.tied = tied;
        config.offload = placements[5];
        run_and_compare(config, 4);
    }
}

/* Servers read shards to send them, and shard groups hold params several times. */
static void test_servers_and_groups_match_their_plan(void **state)
{
    (void)state;
    for (int stage = 1; stage < PLAN_ZERO_STAGES; stage++)
        for (int i = 4; i < PLACEMENTS; i++) {
            struct rig_config config = base_config(stage % 2, 5);
            config.stage = stage;
            config.offload = placements[i];
            config.type = DTYPE_BF16;
            config.servers = 1;
            run_and_compare(config, 3);
            config.servers = 0, config.group = 2;
            run_and_compare(config, 4);
        }
}

/* --- formulas ------------------------------------------------------------------------------- */

/* On a GPU whose state is on the host: the same state in all, what moves follows from it. */
static void test_state_is_counted_wherever_it_is(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct plan_request request = search_request_of(2, 6, 256, 1, 8), plain = request;
    struct plan_rank there, here;
    request.gpu = plain.gpu = true;
    request.zero.type = plain.zero.type = DTYPE_BF16;
    request.zero.offload = (struct zero_offload){.optimizer = FAR_HOST,
                                                 .grads = FAR_HOST,
                                                 .share = 1,
                                                 .window = 1 << 20,
                                                 .folder = "/nowhere"};
    for (int stage = 1; stage < PLAN_ZERO_STAGES; stage++) {
        request.zero.stage = plain.zero.stage = stage;
        assert_ok(plan_rank(&env, &request, 0, &there));
        assert_ok(plan_rank(&env, &plain, 0, &here));
        /* the padding of packets, and an eighth of a byte per parameter for the squares of sums */
        double all = (double)plan_state_bytes(&there) / (double)plan_state_bytes(&here);
        assert_true(all >= 1 && all < 1.03);
        assert_int_equal(here.state_bytes[MEM_HOST], 0);
        assert_int_equal(there.bytes[MEM_OPTIMIZER], 0);
        double optimizer = (double)here.bytes[MEM_OPTIMIZER],
               half = (double)here.part.parameters / 2;
        double sums = 4 * half, moved = optimizer + 3 * sums + sums;
        /* four rounds: a sum is written in each, and read in all but the first and by the update */
        assert_true(fabs(there.moved[TRAFFIC_LINK_IN] / (moved)-1) < 0.03);
        assert_true(fabs(there.moved[TRAFFIC_LINK_OUT] / (optimizer + 4 * sums) - 1) < 0.03);
        assert_int_equal(there.moved[TRAFFIC_DISK_READ], 0);
        assert_true(here.moved[TRAFFIC_LINK_IN] == 0 && here.moved[TRAFFIC_LINK_OUT] == 0);
        request.zero.offload.grads = FAR_DISK;
        assert_ok(plan_rank(&env, &request, 0, &there));
        assert_int_equal(there.disk_bytes, there.state_bytes[MEM_DISK]);
        assert_true(fabs(there.moved[TRAFFIC_DISK_WRITTEN] / (4 * sums) - 1) < 0.03);
        assert_true(fabs(there.moved[TRAFFIC_LINK_IN] / moved - 1) < 0.03);
        request.zero.offload.grads = FAR_HOST;
    }
    env_destroy(&env);
}

/* Where the CPU updates, sums go to the host and 16-bit params come back. */
static void test_less_moves_where_the_host_updates(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct plan_request request = search_request_of(2, 6, 256, 1, 8);
    struct plan_rank rank;
    request.gpu = true;
    request.zero.type = DTYPE_BF16;
    request.zero.stage = 1;
    request.zero.offload = (struct zero_offload){
        .optimizer = FAR_HOST, .share = 1, .window = 1 << 20, .on_host = true};
    assert_ok(plan_rank(&env, &request, 0, &rank));
    double half = (double)rank.part.parameters / 2;
    assert_true(fabs(rank.moved[TRAFFIC_LINK_IN] / (2 * half) - 1) < 0.03);
    assert_true(fabs(rank.moved[TRAFFIC_LINK_OUT] / (4 * half) - 1) < 0.03);
    env_destroy(&env);
}

/* Params: a rank holds a shard of them in far memory, in ZeRO stage 0 all. It reads its shard for
 * every pass that needs it, but for the units where a walk turns around, and writes it once. Ranks
 * exchange shards as in stage 3. */
static void test_far_params_by_the_formula(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct plan_request request = search_request_of(2, 6, 256, 1, 8), plain = request;
    struct plan_rank there, here;
    request.gpu = plain.gpu = true;
    request.zero.type = plain.zero.type = DTYPE_BF16;
    request.zero.offload =
        (struct zero_offload){.params = FAR_HOST, .window = 1 << 20, .folder = "/nowhere"};
    for (int stage = 0; stage < PLAN_ZERO_STAGES; stage++) {
        request.zero.stage = plain.zero.stage = stage;
        assert_ok(plan_rank(&env, &request, 0, &there));
        assert_ok(plan_rank(&env, &plain, 0, &here));
        double all = 2 * (double)here.part.parameters, held = stage == 0 ? all : all / 2;
        assert_true(fabs((double)there.state_bytes[MEM_HOST] / held - 1) < 0.03);
        assert_int_equal(there.bytes[MEM_PARAMS], 0);
        assert_int_equal(there.bytes[MEM_OPTIMIZER], here.bytes[MEM_OPTIMIZER]);
        assert_true(there.total_bytes < here.total_bytes || stage == PLAN_ZERO_STAGES - 1);
        double once = there.moved[TRAFFIC_LINK_OUT] / held; /* four micro-batches of this rank */
        double passes = there.moved[TRAFFIC_LINK_IN] / held;
        assert_true(once > 0.99 && once < 1.03 && passes > 4 && passes < 8.1);
        double formula = plan_sent_formula(&request, 4, &there, stage, TRAFFIC_GATHER);
        double sent = (double)there.sent[TRAFFIC_GATHER];
        assert_true(stage == 0 ? sent == (double)here.sent[TRAFFIC_GATHER]
                               : sent > formula / 2 && sent <= formula * 1.03);
        struct sharding cut = plan_sharding(&request, stage);
        assert_true(cut.params && cut.optim == sharding_of(stage).optim);
    }
    request.zero.stage = PLAN_ZERO_STAGES - 1;
    assert_true(there.sent[TRAFFIC_GATHER] == here.sent[TRAFFIC_GATHER]);
    request.gpu = false; /* host memory is the device's */
    assert_false(plan_sharding(&request, 2).params);
    env_destroy(&env);
}

/* --- what leaves the device ----------------------------------------------------------------- */

static struct plan_request gpu_request(int ranks)
{
    struct plan_request request = search_request_of(ranks, 6, 256, 1, 16);
    request.gpu = true;
    request.zero.type = DTYPE_BF16;
    request.zero.offload =
        (struct zero_offload){.share = 1, .window = 1 << 20, .folder = "/nowhere"};
    return request;
}

static size_t needed(struct env *env, const struct plan_request *request)
{
    struct plan_zero_stage stage;
    assert_ok(plan_worst_memory(env, request, &stage));
    return plan_needs(&stage).memory;
}

static void test_as_little_as_possible_leaves(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct plan_request plain = gpu_request(1), request = plain;
    struct plan_zero_stage stage;
    bool fits;
    size_t all = needed(&env, &plain);
    struct plan_room room = {.memory = all, .host = (size_t)1 << 30};
    assert_ok(plan_offload(&env, &room, &open, &request, &stage, &fits));
    assert_true(fits && !plan_is_offloaded(&request));

    double before = 0;
    for (int less = 2; less <= 8; less += 3) { /* the more is missing, the larger the share */
        request = plain;
        room.memory = all - (size_t)less * (4 << 20);
        assert_ok(plan_offload(&env, &room, &open, &request, &stage, &fits));
        assert_true(fits && request.zero.offload.optimizer == FAR_HOST);
        assert_true(request.zero.offload.grads == FAR_NONE);
        assert_true(request.zero.offload.share > before && request.zero.offload.share <= 1);
        before = request.zero.offload.share;
        request.zero.offload.share -= 1.0 / 64;
        assert_true(request.zero.offload.share <= 0 || needed(&env, &request) > room.memory);
    }

    env_destroy(&env);
}

/* With these keys: the smallest share with which the device has room, and whether all has. */
static bool fits_with(struct env *env, const struct plan_room *room, struct plan_request request,
                      double *share)
{
    struct plan_zero_stage stage;
    for (int low = 0, high = 64, middle = 64; high - low > 1 || middle == 64;
         middle = (low + high) / 2) {
        request.zero.offload.share = middle / 64.0;
        if (needed(env, &request) <= room->memory)
            high = *share = middle, *share /= 64;
        else if (middle == 64 || request.zero.offload.optimizer == FAR_NONE)
            return false;
        else
            low = middle;
    }
    request.zero.offload.share = *share;
    assert_ok(plan_worst_memory(env, &request, &stage));
    return plan_fits(&stage, room);
}

/* Every combination of places is looked at: if one fits, one is found, with the least share. */
static int check_all_placements(struct env *env, const struct plan_request *plain,
                                const struct plan_room *room)
{
    struct plan_request found = *plain;
    struct plan_zero_stage stage;
    bool fits, any = false, without_disk = false;
    assert_ok(plan_offload(env, room, &open, &found, &stage, &fits));
    for (int i = 0; i < 27; i++) {
        struct plan_request request = *plain;
        struct zero_offload *o = &request.zero.offload;
        double share;
        o->optimizer = (enum far_kind)(i % 3);
        o->grads = (enum far_kind)(i / 3 % 3);
        o->params = (enum far_kind)(i / 9);
        bool host = o->optimizer == FAR_HOST || o->grads == FAR_HOST || o->params == FAR_HOST;
        bool disk = o->optimizer == FAR_DISK || o->grads == FAR_DISK || o->params == FAR_DISK;
        if ((host && room->host == 0) || (disk && room->disk == 0) ||
            !fits_with(env, room, request, &share))
            continue;
        any = true;
        without_disk = without_disk || !disk;
        if (found.zero.offload.optimizer == o->optimizer && o->optimizer != FAR_NONE &&
            found.zero.offload.grads == o->grads && found.zero.offload.params == o->params)
            assert_true(found.zero.offload.share == share);
    }
    if (fits != any)
        fail_msg("memory %zu, host %zu, disk %zu: found %d, exists %d; %.0f bytes are missing",
                 room->memory, room->host, room->disk, fits, any, plan_missing(&stage, room));
    assert_true(fits == plan_fits(&stage, room) && fits == (plan_missing(&stage, room) == 0));
    const struct zero_offload *o = &found.zero.offload;
    if (fits && without_disk) /* the disk is the slowest */
        assert_true(o->optimizer != FAR_DISK && o->grads != FAR_DISK && o->params != FAR_DISK);
    return (int)o->optimizer + 3 * (int)o->grads + 9 * (int)o->params + 27 * !fits;
}

static void test_all_places_are_used_together(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct plan_request plain = gpu_request(1), most;
    struct plan_zero_stage stage;
    bool seen[28] = {0};
    int different = 0;
    plain.engine.micro_batches = plain.zero.micro_batches = 2;
    plain.engine.recompute = RECOMPUTE_FULL;
    most = plain;
    most.zero.offload.optimizer = most.zero.offload.grads = most.zero.offload.params = FAR_HOST;
    size_t all = needed(&env, &plain), least = needed(&env, &most);
    assert_ok(plan_worst_memory(&env, &most, &stage));
    size_t far = plan_needs(&stage).host;
    for (size_t memory = 0; memory < 3; memory++)
        for (size_t host = 1; host < 4; host++)
            for (size_t disk = 0; disk < 3; disk += 1 + (memory > 0)) {
                struct plan_room room = {.memory = least + memory * (all - least) / 8,
                                         .host = host * far / 4,
                                         .disk = disk * far / 4};
                int placement = check_all_placements(&env, &plain, &room);
                seen[placement < 27 ? placement : 27] = true;
            }
    for (int i = 0; i < 27; i++)
        different += seen[i];
    assert_true(seen[27] && different >= 3);
    env_destroy(&env);
}

/* Fixed keys keep their value, `none` as well, and the error says what is missing. */
static void test_fixed_keys_stay(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct plan_request plain = gpu_request(1), request = plain;
    struct plan_offload_fixed fixed = {.optimizer = true};
    struct plan_zero_stage stage;
    bool fits;
    struct plan_room room = {.memory = needed(&env, &plain) - (8 << 20), .host = (size_t)1 << 30};
    assert_ok(plan_offload(&env, &room, &fixed, &request, &stage, &fits));
    assert_true(fits && request.zero.offload.optimizer == FAR_NONE);
    assert_true(request.zero.offload.grads == FAR_HOST || request.zero.offload.params == FAR_HOST);

    fixed = (struct plan_offload_fixed){.params = true, .share = true};
    plain.zero.offload.params = FAR_DISK;
    plain.zero.offload.share = 0.5;
    request = plain;
    room.memory = needed(&env, &plain) - (8 << 20);
    assert_ok(plan_offload(&env, &room, &fixed, &request, &stage, &fits));
    assert_true(fits && request.zero.offload.params == FAR_DISK);
    assert_true(request.zero.offload.optimizer == FAR_HOST && request.zero.offload.share == 0.5);

    room.host = plan_needs(&stage).host - 4096; /* too little, wherever the sums go */
    fixed.optimizer = fixed.grads = true;
    plain = request;
    plain.zero.offload.optimizer = FAR_HOST;
    request = plain;
    assert_ok(plan_offload(&env, &room, &fixed, &request, &stage, &fits));
    assert_false(fits);
    assert_true(plan_missing(&stage, &room) == 4096);
    env_destroy(&env);
}

/* The host of a rank without a GPU is where it computes. */
static void test_the_cpu_has_only_the_disk(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct plan_request request = gpu_request(1), plain;
    struct plan_zero_stage stage;
    bool fits;
    request.gpu = false;
    plain = request;
    struct plan_room room = {.host = (size_t)1 << 30, .memory = needed(&env, &request) - 1};
    assert_ok(plan_offload(&env, &room, &open, &request, &stage, &fits));
    assert_false(fits || plan_is_offloaded(&request));
    /* a disk has bounce buffers in memory */
    room = (struct plan_room){.disk = (size_t)1 << 30, .memory = needed(&env, &plain) - (4 << 20)};
    assert_ok(plan_offload(&env, &room, &open, &request, &stage, &fits));
    assert_true(fits && request.zero.offload.optimizer == FAR_DISK);
    env_destroy(&env);
}

static void test_advice_offloads_last(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct plan_request request = gpu_request(1);
    struct plan plan;
    struct plan_advice advice;
    request.engine.recompute = RECOMPUTE_FULL;
    struct plan_room room = {.memory = needed(&env, &request) - (4 << 20)};
    assert_ok(plan_make(&env, &request, &plan));
    assert_ok(plan_advise(&env, &request, &plan, &room, &advice));
    assert_true(!advice.found || advice.ranks > 1);
    room.host = (size_t)1 << 30;
    assert_ok(plan_advise(&env, &request, &plan, &room, &advice));
    assert_true(advice.found && advice.ranks == 1 && advice.offload.optimizer == FAR_HOST);
    request.engine.recompute = RECOMPUTE_NONE; /* there is something else to try */
    assert_ok(plan_advise(&env, &request, &plan, &room, &advice));
    assert_true(advice.found && advice.ranks == 1);
    plan_free(&env, &plan);
    assert_int_equal(mem_total(env.mem), 0);
    env_destroy(&env);
}

/* --- time ----------------------------------------------------------------------------------- */

static double seconds_of(struct env *env, const struct plan_request *request,
                         struct machine_offload rates)
{
    struct machine_profile machine = search_machine(1e10, 2e9);
    struct plan_time time;
    machine.gpu = true;
    machine.offload = rates;
    assert_ok(plan_time(env, request, &machine, &time));
    return time.step;
}

static void test_slower_links_take_longer(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct plan_request plain = gpu_request(1), request = plain;
    struct plan_rank rank;
    request.zero.offload.optimizer = FAR_HOST;
    request.zero.offload.share = 1;
    assert_ok(plan_rank(&env, &request, 0, &rank));
    double bytes = (double)rank.moved[TRAFFIC_LINK_IN];
    double on_device = seconds_of(&env, &plain, (struct machine_offload){0});
    double rate = bytes / on_device; /* as long as a step */
    double fast = seconds_of(&env, &request, (struct machine_offload){.link = 1000 * rate});
    double slow = seconds_of(&env, &request, (struct machine_offload){.link = rate / 10});
    assert_true(fast >= on_device * 0.999 && fast < on_device * 1.05);
    assert_true(slow > 9.5 * on_device && slow < 21 * on_device);
    request.zero.offload.optimizer = FAR_DISK;
    struct machine_offload disk = {
        .link = 1000 * rate, .disk_read = rate / 10, .disk_write = rate / 5};
    double read = seconds_of(&env, &request, disk), quick;
    assert_true(read > 9.5 * on_device);
    disk.disk_write = rate / 40;
    assert_true(seconds_of(&env, &request, disk) > 2 * read);
    request.zero.offload.optimizer = FAR_HOST;
    request.zero.offload.on_host = true;
    struct zero_offload state_far = request.zero.offload;
    request.zero.offload = (struct zero_offload){.params = FAR_HOST, .window = 1 << 20};
    quick = seconds_of(&env, &request, (struct machine_offload){.link = 1000 * rate});
    assert_true(quick < 1.1 * on_device);
    assert_true(seconds_of(&env, &request, (struct machine_offload){.link = rate / 10}) >
                5 * on_device);
    request.zero.offload = state_far;
    struct machine_offload host = {.link = 1000 * rate, .host_update = 1000 * rate};
    quick = seconds_of(&env, &request, host);
    host.host_update = rate / 10;
    assert_true(quick < 1.1 * on_device && seconds_of(&env, &request, host) > 5 * on_device);
    env_destroy(&env);
}

/* --- search --------------------------------------------------------------------------------- */

static struct search_space space_of(const struct plan_request *request,
                                    const struct machine_profile *machine)
{
    return (struct search_space){.request = request,
                                 .global_batch = 16,
                                 .machine = machine,
                                 .node = machine->comm.node,
                                 .most = 5};
}

static void test_the_search_offloads_what_does_not_fit(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct machine_profile machine = search_machine(1e10, 2e9);
    struct plan_request request = gpu_request(1);
    struct search_space space = space_of(&request, &machine);
    struct search_result result;
    struct text text;
    machine.gpu = true;
    machine.offload = (struct machine_offload){.link = 1e10, .disk_read = 1e9, .disk_write = 1e9};
    struct plan_request least = request;
    least.engine.recompute = RECOMPUTE_FULL;
    space.memory = needed(&env, &least);
    space.host = space.disk = (size_t)1 << 30;
    space.most = 1;

    /* everything fits: nothing leaves, and the result is that without a host */
    space.memory *= 4;
    assert_ok(search_layouts(&env, &space, &result));
    double step = result.layouts[0].time.step;
    assert_false(plan_is_offloaded(&result.layouts[0].request));
    assert_true(result.layouts[0].host_bytes > 0 && result.layouts[0].disk_bytes == 0);
    search_result_free(&env, &result);
    space.host = space.disk = 0;
    assert_ok(search_layouts(&env, &space, &result));
    assert_true(result.layouts[0].time.step == step && result.layouts[0].device == 0);
    search_result_free(&env, &result);

    /* nothing fits without */
    space.memory = space.memory / 4 - (8 << 20);
    assert_ok(search_layouts(&env, &space, &result));
    assert_int_equal(result.count, 0);
    search_result_free(&env, &result);
    space.host = (size_t)1 << 30;
    assert_ok(search_layouts(&env, &space, &result));
    assert_int_equal(result.count, 1);
    const struct search_layout *first = &result.layouts[0];
    assert_true(first->request.zero.offload.optimizer == FAR_HOST);
    assert_true(first->needed_bytes <= space.memory && first->host_bytes <= space.host);
    assert_true(first->time.moved[TRAFFIC_LINK_IN] > 0 && first->time.step > first->device);
    assert_true(first->device > 0 && first->bound <= first->time.step);
    text_init(&text, &env);
    search_explain(&space, &result, &text);
    assert_non_null(strstr(text_string(&text), "of the optimizer state is on the host"));
    assert_non_null(strstr(text_string(&text), "to the GPU"));
    text_free(&text);
    search_result_free(&env, &result);

    /* keys of the user stay */
    space.fixed.offload = all_fixed;
    assert_ok(search_layouts(&env, &space, &result));
    assert_int_equal(result.count, 0);
    search_result_free(&env, &result);
    request.zero.offload.optimizer = FAR_HOST;
    request.zero.offload.share = 0.7;
    assert_ok(search_layouts(&env, &space, &result));
    for (int i = 0; i < result.count; i++)
        assert_true(result.layouts[i].request.zero.offload.share == 0.7);
    assert_true(result.count > 0);
    search_result_free(&env, &result);
    request.zero.offload.params = FAR_HOST; /* also of params, and it takes less memory */
    space.memory -= (size_t)2 << 20;
    assert_ok(search_layouts(&env, &space, &result));
    assert_true(result.count > 0 && result.layouts[0].request.zero.offload.params == FAR_HOST);
    assert_true(result.layouts[0].device > 0 &&
                result.layouts[0].bound <= result.layouts[0].time.step);
    text_init(&text, &env);
    search_explain(&space, &result, &text);
    assert_non_null(strstr(text_string(&text), "70 % of the optimizer state is on the host, "
                                               "parameters are on the host"));
    text_free(&text);
    search_result_free(&env, &result);
    assert_int_equal(mem_total(env.mem), 0);
    env_destroy(&env);
}

/* What is not simulated is not faster. */
static void test_the_search_misses_nothing(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct machine_profile machine = search_machine(1e10, 2e9);
    struct plan_request request = gpu_request(4);
    struct search_space space = space_of(&request, &machine);
    struct search_result quick, all;
    machine.gpu = true;
    machine.offload = (struct machine_offload){.link = 1e10, .disk_read = 1e9, .disk_write = 1e9};
    space.memory = (size_t)601 << 20;
    space.most = 2;
    space.host = space.disk = (size_t)1 << 30;
    space.fixed = (struct search_fixed){
        .micro_batch = true, .regather = true, .schedule = true, .recompute = true};
    assert_ok(search_layouts(&env, &space, &quick));
    space.exhaustive = true;
    assert_ok(search_layouts(&env, &space, &all));
    assert_true(quick.timed < all.timed && quick.count == all.count && all.count > 1);
    bool any = false;
    for (int i = 0; i < all.count; i++) {
        assert_true(quick.layouts[i].time.step == all.layouts[i].time.step);
        any = any || plan_is_offloaded(&all.layouts[i].request);
    }
    assert_true(any);
    assert_int_equal(quick.possible, quick.too_large + quick.bounded + quick.timed + quick.refused);
    search_result_free(&env, &quick);
    search_result_free(&env, &all);
    env_destroy(&env);
}

/* No bound exceeds the simulation. Returns the number of layouts whose state leaves the device. */
static int64_t check_bounds(struct env *env, const struct search_space *space, int64_t every)
{
    struct plan_room room = {space->memory, space->host, space->disk};
    struct search_points points;
    int64_t offloaded = 0;
    assert_ok(search_points_make(env, space, &points));
    for (int64_t i = 0; i < points.count; i += every) {
        struct search_point *p = &points.points[i];
        struct plan_request its = search_request(space, p);
        struct plan_zero_stage stage;
        struct plan_time time;
        bool fits;
        assert_ok(search_points_refine(env, space, &points, p));
        assert_ok(plan_offload(env, &room, &space->fixed.offload, &its, &stage, &fits));
        assert_ok(plan_time(env, &its, space->machine, &time));
        if (p->bound > time.step * (1 + 1e-9) || p->bytes > plan_needs(&stage).memory)
            fail_msg("tp %d pp %d stage %d micro-batch %d recompute %d: bound %g s, %zu bytes; "
                     "simulated %g s, %zu bytes",
                     p->tp, p->pp, p->stage, p->micro_batch, p->recompute, p->bound, p->bytes,
                     time.step, plan_needs(&stage).memory);
        offloaded += fits && plan_is_offloaded(&its);
    }
    search_points_free(env, &points);
    return offloaded;
}

static void test_bounds_hold(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct machine_profile machine = search_machine(1e10, 2e9);
    struct plan_request request = gpu_request(4);
    struct search_space space = space_of(&request, &machine);
    machine.gpu = true;
    machine.offload = (struct machine_offload){.link = 1e11, .disk_read = 1e10, .disk_write = 1e10};
    space.memory = (size_t)600 << 20;
    for (int disk = 0; disk < 2; disk++) {
        space.host = disk ? 0 : (size_t)1 << 30;
        space.disk = disk ? (size_t)1 << 30 : 0;
        assert_true(check_bounds(&env, &space, 37) > 0);
    }
    env_destroy(&env);
}

/* Many small layers and slow wires: params are most of the memory, and messages most of the time. */
static void test_bounds_hold_for_far_params(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct machine_profile machine = search_machine(2e8, 2e8);
    struct plan_request request = search_request_of(4, 60, 128, 4, 4);
    struct search_space space = space_of(&request, &machine);
    request.gpu = machine.gpu = true;
    request.engine.tokens = 8;
    request.zero.type = DTYPE_BF16;
    machine.ops.rates[OPS_KIND_MEMORY].bytes_per_second = 1e9;
    machine.offload = (struct machine_offload){.link = 1e12, .disk_read = 1e12, .disk_write = 1e12};
    space.fixed = (struct search_fixed){.offload = all_fixed, .tp = true, .micro_batch = true};
    for (int i = 0; i < 4; i++) {
        request.zero.offload = (struct zero_offload){.params = i % 2 ? FAR_DISK : FAR_HOST,
                                                     .optimizer = i / 2 ? FAR_HOST : FAR_NONE,
                                                     .share = 1,
                                                     .window = 1 << 16,
                                                     .folder = "/nowhere"};
        assert_true(check_bounds(&env, &space, 3) > 3);
    }
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_match_their_plan),
        cmocka_unit_test(test_mixed_placements_match_their_plan),
        cmocka_unit_test(test_optimizers_match_their_plan),
        cmocka_unit_test(test_pipelines_match_their_plan),
        cmocka_unit_test(test_servers_and_groups_match_their_plan),
        cmocka_unit_test(test_state_is_counted_wherever_it_is),
        cmocka_unit_test(test_less_moves_where_the_host_updates),
        cmocka_unit_test(test_far_params_by_the_formula),
        cmocka_unit_test(test_as_little_as_possible_leaves),
        cmocka_unit_test(test_all_places_are_used_together),
        cmocka_unit_test(test_fixed_keys_stay),
        cmocka_unit_test(test_the_cpu_has_only_the_disk),
        cmocka_unit_test(test_advice_offloads_last),
        cmocka_unit_test(test_slower_links_take_longer),
        cmocka_unit_test(test_the_search_offloads_what_does_not_fit),
        cmocka_unit_test(test_the_search_misses_nothing),
        cmocka_unit_test(test_bounds_hold),
        cmocka_unit_test(test_bounds_hold_for_far_params),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
