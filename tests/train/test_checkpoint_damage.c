/* Damages checkpoints at many offsets. Every reader detects the damage, names the file, and uses
 * nothing from that checkpoint. A run resumes from the previous checkpoint, and readers of the
 * run's model fall back to it.
 *
 * SIFR_TEST_DAMAGE is the number of offsets in each kind of file; default 20, under a
 * sanitizer 6.
 */
#include <sys/stat.h>
#include <unistd.h>
#include "base/rng.h"
#include "save_rig.h"
#include "train/models/model_source.h"
#include "train/weights/model_file.h"
#include "train/checkpoint/resume.h"

static const char SETTINGS[] =
    "train.steps=9 train.eval_batches=1 model.layers=1 model.width=16 model.heads=2 "
    "model.kv_heads=1 checkpoint.every=2 precision.mode=bf16 ";

/* --- ways to damage a file ------------------------------------------------------------------ */

static void write_file(const char *path, const char *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
}

/* Flip a bit, cut the file, append a byte, or remove the file. `data` has room for one more
 * byte. */
static void damage_file(const char *path, char *data, size_t bytes, int way, uint64_t draw)
{
    size_t at = (size_t)(draw % bytes);
    char kept = data[at];
    if (way % 3 == 0) {
        write_file(path, data, at);
    } else if (way % 16 == 5) {
        data[bytes] = (char)(draw >> 48);
        write_file(path, data, bytes + 1);
    } else if (way % 16 == 11) {
        assert_int_equal(unlink(path), 0);
    } else {
        data[at] ^= (char)(1 << (draw >> 48) % 8);
        write_file(path, data, bytes);
        data[at] = kept;
    }
}

static void flip(const char *path, uint64_t draw)
{
    struct scratch s;
    char *data;
    size_t bytes;
    assert_int_equal(env_create(&s.env, scratch_sink, NULL, LOG_ERROR, 1), STATUS_OK);
    assert_int_equal(file_read(&s.env, path, 1 << 26, &data, &bytes), STATUS_OK);
    damage_file(path, data, bytes, 1, draw);
    mem_free(&s.env, data);
    env_destroy(&s.env);
}

static void copy_run(struct save_rig *rig, const char *from, const char *to)
{
    char command[256];
    const char *folder = rig->run.scratch.folder;
    snprintf(command, sizeof command, "rm -rf %s/%s && cp -r %s/%s %s/%s", folder, to, folder, from,
             folder, to);
    assert_int_equal(system(command), 0);
}

/* --- readers of a checkpoint ---------------------------------------------------------------- */

struct readers {
    struct save_rig rig;
    struct env env; /* its log is kept in `lines` */
    char lines[4096];
    struct session session;
    char run[128], newest[160]; /* step-4; the previous checkpoint is step-2 */
    const char *name;           /* path of the damaged file inside `newest` */
    int way;
};

static void keep_line(void *user, enum log_level level, const char *line)
{
    struct readers *r = user;
    size_t used = strlen(r->lines);
    (void)level;
    snprintf(r->lines + used, sizeof r->lines - used, "%s\n", line);
}

/* The log names the damaged file. COMPLETE holds the hash of state.json, so an error about one of
 * them names both. */
static void expect_named(struct readers *r, const char *who)
{
    if (!strstr(r->lines, r->name))
        fail_msg("%s: '%s' is not named (%d): %s", who, r->name, r->way, r->lines);
    *r->lines = 0;
    log_error_clear(r->env.log);
}

static void expect_verify(struct readers *r)
{
    struct checkpoint *checkpoint;
    enum status st = checkpoint_open(&r->env, r->newest, &checkpoint);
    if (st == STATUS_OK) {
        st = checkpoint_verify(checkpoint, NULL, NULL);
        checkpoint_close(checkpoint);
    }
    if (st != STATUS_FORMAT && st != STATUS_IO)
        fail_msg("verify: damage of '%s' (%d) was not detected", r->name, r->way);
    expect_named(r, "verify");
}

static bool is_kind(const struct readers *r, const char *start)
{
    return strncmp(r->name, start, strlen(start)) == 0;
}

/* eval, sample, export and model.path read only some files of the newest checkpoint: they fall back
 * to the previous one exactly if one of these files is damaged. Readers of masters read the model
 * files too, which have the frozen tensors. */
static void expect_model(struct readers *r, const enum dtype *type)
{
    const struct model_want want = {.depth = MODEL_DEPTH_ALL, .type = type};
    struct model_source *source;
    bool masters = type && *type == DTYPE_F32;
    bool good = is_kind(r, "optimizer/") && !(masters && is_kind(r, "optimizer/master"));
    assert_int_equal(model_source_open(&r->env, r->run, &want, &source), STATUS_OK);
    if (!strstr(source->folder, good ? "/step-4" : "/step-2"))
        fail_msg("'%s' is damaged (%d), but '%s' was used", r->name, r->way, source->folder);
    model_source_close(source);
    if (good)
        return;
    expect_named(r, "the run");
    enum status st = model_source_open(&r->env, r->newest, &want, &source);
    if (st != STATUS_FORMAT && st != STATUS_IO)
        fail_msg("'%s' is damaged (%d), but its checkpoint was used", r->name, r->way);
    expect_named(r, "the checkpoint");
}

static void expect_resume(struct readers *r)
{
    const struct fingerprint print = {0};
    char checkpoints[160];
    snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", r->run);
    const struct resume_source place = {
        .folder = checkpoints, .wanted = true, .config_yaml = "", .print = &print, .steps = 9};
    struct checkpoint_progress progress;
    struct resume_load load;
    bool found = false;
    assert_int_equal(resume_run(&r->env, &place, NULL, model_graph(r->session.model),
                                r->session.zero, &progress, &load, &found),
                     STATUS_OK);
    if (!found || progress.step != 2)
        fail_msg("'%s' is damaged (%d), but the run resumed from it", r->name, r->way);
    expect_named(r, "resume");
}

static void expect_all(struct readers *r)
{
    static const enum dtype wide = DTYPE_F32;
    expect_verify(r);
    expect_model(r, NULL);
    expect_model(r, &wide);
    expect_resume(r);
}

/* --- every kind of file --------------------------------------------------------------------- */

static void readers_open(struct readers *r, const char *settings)
{
    struct model_config sizes = {.path = ""};
    const struct zero_config store = {.optimizer.beta1 = 0.9,
                                      .optimizer.beta2 = 0.95,
                                      .optimizer.eps = 1e-8,
                                      .micro_batches = 1,
                                      .type = DTYPE_BF16,
                                      .sum_type = DTYPE_F32};
    char all[320];
    *r = (struct readers){0};
    assert_int_equal(env_create(&r->env, keep_line, r, LOG_WARN, 1), STATUS_OK);
    save_open(&r->rig);
    snprintf(r->run, sizeof r->run, "%s/run", r->rig.run.scratch.folder);
    snprintf(r->newest, sizeof r->newest, "%s/checkpoints/step-4", r->run);
    snprintf(all, sizeof all, "%s train.stop_at=4 zero.stage=3 %s", SETTINGS, settings);
    assert_int_equal(save_train(&r->rig, "run", 2, all), STATUS_SAVED);
    assert_int_equal(model_file_config(&r->env, r->newest, &sizes), STATUS_OK);
    assert_int_equal(session_create(&r->env,
                                    (struct compute_config){.backend = "cpu", .type = DTYPE_F32},
                                    &sizes, &store, &r->session),
                     STATUS_OK);
}

static void readers_close(struct readers *r)
{
    session_destroy(&r->session);
    env_destroy(&r->env);
    rig_close(&r->rig.run);
}

static void damage_kind(struct readers *r, const char *name, int places)
{
    char path[300], *data;
    size_t bytes;
    struct rng rng = rng_stream(3, name);
    snprintf(path, sizeof path, "%s/%s", r->newest, name);
    /* file_read appends a NUL: the extra byte that damage_file needs */
    assert_int_equal(file_read(&r->env, path, 1 << 26, &data, &bytes), STATUS_OK);
    r->name = name;
    for (r->way = 0; r->way < places; r->way++) {
        damage_file(path, data, bytes, r->way, rng_bits(rng, (uint64_t)r->way));
        expect_all(r);
    }
    write_file(path, data, bytes);
    mem_free(&r->env, data);
}

static void damage_kinds(const char *settings, const char *const *names)
{
    static struct readers r;
    const char *told = getenv("SIFR_TEST_DAMAGE");
    int places = told ? atoi(told) : TESTING_SANITIZED ? 6 : 20, kinds = 0;
    readers_open(&r, settings);
    for (; names[kinds]; kinds++)
        damage_kind(&r, names[kinds], places);
    printf("%d kinds of files, %d places in each\n", kinds, places);
    /* all damage has been undone */
    assert_int_equal(save_verify(&r.rig, "run/checkpoints/step-4"), STATUS_OK);
    readers_close(&r);
}

static void test_damage_is_found_in_every_kind_of_file(void **state)
{
    (void)state;
    static const char *const names[] = {"model.safetensors",
                                        "optimizer/master.safetensors",
                                        "optimizer/momentum.safetensors",
                                        "optimizer/variance.safetensors",
                                        "config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "generation_config.json",
                                        "state.json",
                                        "COMPLETE",
                                        NULL};
    damage_kinds("", names);
}

static void test_damage_is_found_in_split_files(void **state)
{
    (void)state;
    static const char *const names[] = {"model-00001-of-00003.safetensors",
                                        "model-00003-of-00003.safetensors",
                                        "model.safetensors.index.json",
                                        "optimizer/master-00002-of-00003.safetensors",
                                        "optimizer/momentum-00001-of-00003.safetensors",
                                        "optimizer/variance-00003-of-00003.safetensors",
                                        NULL};
    damage_kinds("checkpoint.file_size=2000", names);
}

/* --- complete runs -------------------------------------------------------------------------- */

/* Resumed on several ranks, the run ends with the same bits as one without damage. */
static void test_the_previous_checkpoint_is_used(void **state)
{
    (void)state;
    static const char *const names[] = {"optimizer/master.safetensors",
                                        "optimizer/momentum.safetensors",
                                        "optimizer/variance.safetensors",
                                        "state.json",
                                        "COMPLETE",
                                        "config.json",
                                        "tokenizer.json",
                                        "model.safetensors"};
    struct save_rig rig = {0};
    char settings[256], path[160];
    save_open(&rig);
    snprintf(settings, sizeof settings, "%s train.stop_at=4 zero.stage=3", SETTINGS);
    assert_int_equal(save_train(&rig, "kept", 2, settings), STATUS_SAVED);
    assert_int_equal(save_train(&rig, "plain", 1, SETTINGS), STATUS_OK);
    for (int i = 0; i < 8; i++) {
        copy_run(&rig, "kept", "run");
        snprintf(path, sizeof path, "%s/run/checkpoints/step-4/%s", rig.run.scratch.folder,
                 names[i]);
        if (i % 2 == 0 || i > 4)
            flip(path, 4321);
        else
            assert_int_equal(unlink(path), 0);
        snprintf(settings, sizeof settings, "%s zero.stage=1", SETTINGS);
        assert_int_equal(save_train(&rig, "run", 1 + i % 3, settings), STATUS_OK);
        save_expect_line(&rig, "step-4': ");
        save_expect_line(&rig, names[i]);
        save_expect_line(&rig, "resuming after step 2 from");
        assert_true(save_there(&rig, "run/checkpoints/step-4.damaged"));
        save_expect_same(&rig, "plain/checkpoints/step-9/optimizer/variance.safetensors",
                         "run/checkpoints/step-9/optimizer/variance.safetensors");
    }
    rig_close(&rig.run);
}

/* All checkpoints are damaged: the run fails and changes nothing. */
static void test_a_run_without_a_good_checkpoint_fails(void **state)
{
    (void)state;
    struct save_rig rig = {0};
    char settings[256], path[160];
    size_t bytes;
    save_open(&rig);
    snprintf(settings, sizeof settings, "%s train.stop_at=4", SETTINGS);
    assert_int_equal(save_train(&rig, "kept", 1, settings), STATUS_SAVED);
    copy_run(&rig, "kept", "run");
    for (int step = 2; step <= 4; step += 2) {
        snprintf(path, sizeof path, "%s/run/checkpoints/step-%d/optimizer/momentum.safetensors",
                 rig.run.scratch.folder, step);
        flip(path, 1000);
    }
    for (int ranks = 1; ranks <= 2; ranks++) {
        assert_int_equal(save_train(&rig, "run", ranks, SETTINGS), STATUS_FORMAT);
        save_expect_line(&rig, "no usable checkpoint in");
        save_expect_line(&rig, "step-2/optimizer/momentum.safetensors");
        assert_true(save_there(&rig, "run/checkpoints/step-4/COMPLETE"));
        save_expect_same(&rig, "kept/metrics.jsonl", "run/metrics.jsonl");
        save_expect_same(&rig, "kept/config.yaml", "run/config.yaml");
    }
    char *text = save_read(&rig, "run/summary.json", &bytes);
    assert_true(strstr(text, "stopped") != NULL);
    mem_free(&rig.run.scratch.env, text);
    rig_close(&rig.run);
}

/* Running out of memory while reading a checkpoint is not damage: the run does not fall back to the
 * previous one. */
static void test_out_of_memory_is_not_damage(void **state)
{
    (void)state;
    static struct readers r;
    const struct fingerprint print = {0};
    const struct model_want want = {.depth = MODEL_DEPTH_ALL};
    struct checkpoint_progress progress;
    struct model_source *source;
    char checkpoints[160];
    struct resume_load load;
    bool found;
    readers_open(&r, "");
    snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", r.run);
    const struct resume_source place = {
        .folder = checkpoints, .wanted = true, .config_yaml = "", .print = &print, .steps = 9};
    size_t before = mem_total(r.env.mem);
    enum status st = STATUS_MEMORY;
    for (int n = 1; st == STATUS_MEMORY; n++) {
        mem_fail_at(r.env.mem, n);
        st = resume_run(&r.env, &place, NULL, model_graph(r.session.model), r.session.zero,
                        &progress, &load, &found);
        mem_fail_at(r.env.mem, 0);
        assert_int_equal(mem_total(r.env.mem), before);
        assert_null(strstr(r.lines, "skipped the damaged"));
        *r.lines = 0;
    }
    assert_int_equal(st, STATUS_OK);
    assert_true(found && progress.step == 4);
    st = STATUS_MEMORY;
    for (int n = 1; st == STATUS_MEMORY; n++) {
        mem_fail_at(r.env.mem, n);
        st = model_source_open(&r.env, r.run, &want, &source);
        mem_fail_at(r.env.mem, 0);
        assert_true(st == STATUS_OK || mem_total(r.env.mem) == before);
        assert_null(strstr(r.lines, "skipped the damaged"));
        *r.lines = 0;
    }
    assert_int_equal(st, STATUS_OK);
    assert_non_null(strstr(source->folder, "/step-4"));
    model_source_close(source);
    readers_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_damage_is_found_in_every_kind_of_file),
        cmocka_unit_test(test_damage_is_found_in_split_files),
        cmocka_unit_test(test_the_previous_checkpoint_is_used),
        cmocka_unit_test(test_a_run_without_a_good_checkpoint_fails),
        cmocka_unit_test(test_out_of_memory_is_not_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
