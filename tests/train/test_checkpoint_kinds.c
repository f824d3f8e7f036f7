/* Checkpoints of every kind of optimizer: a run continues from one with the same bits on any
 * layout; adamw and adamw8bit are converted into each other, other changes are refused; damaged
 * codes and scales are named. Ranks are threads of one process. */
#include <glob.h>
#include <math.h>
#include <xxhash.h>
#include "engine/ranks.h"
#include "scratch.h"
#include "train/checkpoint/resume.h"

#define ADAM .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8

/* Tensors that Llama fuses into one param have different kinds. */
static const struct zero_group mixed[] = {
    {"*q_proj*", 1, 0.1, {.kind = OPTIMIZER_SGD, .momentum = 0.9}},
    {"*k_proj*", 1, 0.1, {.kind = OPTIMIZER_ADAMW8BIT, ADAM}},
    {"*gate_proj*", 1, 0.1, {.kind = OPTIMIZER_SGD}},
    {"*norm*", 1, 0.1, {.kind = OPTIMIZER_ADAMW8BIT, ADAM}},
};

enum { KIND_ADAMW, KIND_ADAMW8BIT, KIND_SGD, KIND_SGD_MOMENTUM, KIND_MIXED, KIND_MUON, KINDS };

static struct rig_config config_of(int kind)
{
    static const enum optimizer_kind kinds[] = {OPTIMIZER_ADAMW, OPTIMIZER_ADAMW8BIT,
                                                OPTIMIZER_SGD,   OPTIMIZER_SGD,
                                                OPTIMIZER_ADAMW, OPTIMIZER_MUON};
    struct rig_config config = shared_config(1);
    config.optimizer = kinds[kind];
    config.no_momentum = kind == KIND_SGD;
    if (kind == KIND_MIXED)
        config.groups = mixed, config.group_count = 4;
    return config;
}

/* --- a run that resumes, takes a step, and saves ----------------------------------------------- */

struct run_job {
    struct rig_config config;
    const char *from, *to; /* folders of checkpoints; NULL: none */
    int begin, end;        /* steps */
    char lines[4096];      /* the log of rank 0 */
    enum status status;
    float *params;
    int64_t count;
};

static void keep_line(void *user, enum log_level level, const char *line)
{
    struct run_job *job = user;
    size_t used = strlen(job->lines);
    (void)level;
    snprintf(job->lines + used, sizeof job->lines - used, "%s\n", line);
}

static const char *yaml_of(const struct rig_config *config)
{
    return config->tp > 1 ? "parallel:\n  tp: 2\n" : "parallel:\n  tp: 1\n";
}

static const struct fingerprint machine = {.cpu = "A", .blas = "B", .device = "cpu"};

static enum status resume(struct run_job *job, struct rig *rig)
{
    const struct resume_source source = {.folder = job->from,
                                         .wanted = true,
                                         .config_yaml = yaml_of(&job->config),
                                         .print = &machine,
                                         .steps = 100};
    struct checkpoint_progress progress;
    struct resume_load load;
    bool found = false;
    TRY(resume_run(rig->env, &source, rig->comm, model_graph(rig->model), rig->zero, &progress,
                   &load, &found));
    assert_true(found && progress.step == job->begin);
    return STATUS_OK;
}

static void save(struct run_job *job, struct rig *rig)
{
    const struct checkpoint_config config = {.keep = 9, .file_bytes = 20000};
    const struct checkpoint_setup setup = {.run = job->to,
                                           .folder = job->to,
                                           .graph = model_graph(rig->model),
                                           .model = rig->model,
                                           .zero = rig->zero,
                                           .device = rig->device,
                                           .comm = rig->comm,
                                           .type = job->config.type,
                                           .config = &config,
                                           .config_yaml = yaml_of(&job->config),
                                           .print = machine,
                                           .from_snapshot = job->config.snapshot};
    const struct checkpoint_progress progress = {.step = job->end, .updates = job->end, .loss = 1};
    struct checkpoint_saver *saver;
    struct checkpoint_result result;
    assert_ok(checkpoint_saver_create(rig->env, &setup, &saver));
    assert_ok(checkpoint_saver_save(saver, &progress));
    assert_true(checkpoint_saver_result(saver, true, &result));
    if (!result.saved)
        fail_msg("%s", result.error);
    assert_true(result.bytes < checkpoint_saver_bytes(saver)); /* it predicts enough space */
    checkpoint_saver_destroy(saver);
}

static void *run_rank_of(void *argument)
{
    struct run_job *job = argument;
    struct rig rig;
    struct env env;
    assert_int_equal(env_create(&env, keep_line, job, LOG_INFO, 1), STATUS_OK);
    assert_ok(rig_create(&env, job->config, &rig));
    assert_ok(zero_settle(rig.zero));
    job->status = job->from ? resume(job, &rig) : STATUS_OK;
    for (int step = job->begin; job->status == STATUS_OK && step < job->end; step++)
        rig_step(&rig, step);
    if (job->status == STATUS_OK && job->to)
        save(job, &rig);
    if (job->status == STATUS_OK)
        job->params = rig_params(&rig, &job->count);
    rig_destroy(&rig);
    env_destroy(&env);
    return NULL;
}

/* *job = the job of the first rank after the run. */
static void run_job(struct run_job *job, int ranks)
{
    struct run_job jobs[MOST_RANKS];
    job->config.snapshot = job->config.tp > 1 || job->config.stage == 3;
    for (int r = 0; r < ranks; r++)
        jobs[r] = *job;
    rig_run_ranks(run_rank_of, jobs, ranks, sizeof *jobs);
    for (int r = 1; r < ranks; r++)
        free(jobs[r].params);
    *job = jobs[0];
}

static void expect_same_params(struct run_job *a, struct run_job *b)
{
    assert_int_equal(a->status, STATUS_OK);
    assert_int_equal(b->status, STATUS_OK);
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->params, b->params, (size_t)a->count * sizeof(float));
    free(b->params);
}

struct files { /* folders of a test */
    struct scratch s;
    char plain[96], there[96], back[96];
};

static void files_open(struct files *f)
{
    scratch_open(&f->s);
    strcpy(f->plain, scratch_path(&f->s, "plain"));
    strcpy(f->there, scratch_path(&f->s, "there"));
    strcpy(f->back, scratch_path(&f->s, "back"));
}

/* --- the same kind ----------------------------------------------------------------------------- */

/* The tensor files of two checkpoints have the same names and bytes. */
static void expect_same_files(struct files *f)
{
    char command[512];
    for (int i = 0; i < 2; i++) {
        const char *a = i == 0 ? f->plain : f->back, *b = i == 0 ? f->back : f->plain;
        snprintf(
            command, sizeof command,
            "cd %s/step-3 && for i in *.safetensors optimizer/*; do test -e \"$i\" || continue; "
            "cmp \"$i\" \"%s/step-3/$i\" || exit 1; done",
            a, b);
        assert_int_equal(system(command), 0);
    }
}

static void test_a_run_continues_on_any_layout(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct rig_config one = config_of(kind), many = one, pipe = one;
        struct files f;
        files_open(&f);
        many.stage = 3;
        pipe.pp = 2, pipe.stage = 1;
        struct run_job plain = {.config = one, .end = 3, .to = f.plain};
        struct run_job first = {.config = many, .end = 2, .to = f.there};
        struct run_job second = {
            .config = pipe, .from = f.there, .begin = 2, .end = 3, .to = f.back};
        run_job(&plain, 1);
        run_job(&first, 5);
        run_job(&second, 4);
        expect_same_params(&plain, &second);
        expect_same_files(&f);
        assert_null(strstr(second.lines, "the checkpoint has the state"));
        assert_null(strstr(second.lines, "arithmetic"));
        free(first.params);
        free(plain.params);
        scratch_close(&f.s);
    }
}

static void test_tp_ranks_continue(void **state)
{
    (void)state;
    struct rig_config one = config_of(KIND_ADAMW8BIT), many;
    struct files f;
    files_open(&f);
    one.tp = 2;
    many = one;
    many.stage = 3;
    struct run_job plain = {.config = one, .end = 3};
    struct run_job first = {.config = one, .end = 2, .to = f.there};
    struct run_job second = {.config = many, .from = f.there, .begin = 2, .end = 3};
    run_job(&plain, 2);
    run_job(&first, 2);
    run_job(&second, 6);
    expect_same_params(&plain, &second);
    assert_null(strstr(second.lines, "encoded again"));

    /* with another tp: both ways */
    struct run_job whole = {
        .config = config_of(KIND_ADAMW8BIT), .from = f.there, .begin = 2, .end = 3, .to = f.back};
    struct run_job halves = {.config = one, .from = f.back, .begin = 3, .end = 4};
    run_job(&whole, 1);
    run_job(&halves, 2);
    assert_int_equal(whole.status, STATUS_OK);
    assert_int_equal(halves.status, STATUS_OK);
    assert_non_null(
        strstr(whole.lines, "8-bit moments are encoded again, because parallel.tp changed"));
    assert_non_null(strstr(halves.lines, "8-bit moments are encoded again"));
    free(whole.params), free(halves.params), free(first.params), free(plain.params);
    scratch_close(&f.s);
}

/* --- other kinds ------------------------------------------------------------------------------- */

static int count_lines(const char *lines, const char *part)
{
    int count = 0;
    for (const char *at = lines; (at = strstr(at, part)) != NULL; at++)
        count++;
    return count;
}

/* adamw <-> adamw8bit; the layout does not matter. */
static void test_adamw_is_converted(void **state)
{
    (void)state;
    static const char *const lines[] = {"was rounded to 8 bits for adamw8bit",
                                        "was widened to fp32 for adamw"};
    for (int way = 0; way < 2; way++) {
        struct rig_config from = config_of(way == 0 ? KIND_ADAMW : KIND_ADAMW8BIT);
        struct rig_config to = config_of(way == 0 ? KIND_ADAMW8BIT : KIND_ADAMW), many = to;
        struct files f;
        files_open(&f);
        many.stage = 3;
        struct run_job plain = {.config = from, .end = 3};
        struct run_job first = {.config = from, .end = 2, .to = f.there};
        struct run_job one = {.config = to, .from = f.there, .begin = 2, .end = 3};
        struct run_job other = {.config = many, .from = f.there, .begin = 2, .end = 3};
        run_job(&plain, 1);
        run_job(&first, 3);
        run_job(&one, 1);
        run_job(&other, 5);
        expect_same_params(&one, &other);
        assert_int_equal(count_lines(one.lines, lines[way]), 1);
        assert_int_equal(count_lines(other.lines, lines[way]), 1);
        /* The moments were kept: the step is about the same. Codes as fp32 have the same values, so
         * the first step has even the same bits. */
        bool same = memcmp(one.params, plain.params, (size_t)one.count * sizeof(float)) == 0;
        assert_true(same == (way == 1));
        for (int64_t i = 0; i < one.count; i++)
            assert_true(fabs((double)one.params[i] - (double)plain.params[i]) < 5e-3);
        free(one.params), free(first.params), free(plain.params);
        scratch_close(&f.s);
    }
}

/* A group may convert some tensors only. Each line counts its own. */
static void test_conversions_are_counted(void **state)
{
    (void)state;
    static const struct zero_group one[] = {
        {"*layers.0.self_attn.k_proj.weight", 1, 0.1, {.kind = OPTIMIZER_ADAMW8BIT, ADAM}}};
    static const char *const lines[] = {
        "the adamw state of 1 tensor was rounded to 8 bits for adamw8bit",
        "the adamw8bit state of 1 tensor was widened to fp32 for adamw"};
    for (int way = 0; way < 2; way++) {
        struct rig_config configs[2] = {config_of(KIND_ADAMW), config_of(KIND_ADAMW)};
        struct files f;
        files_open(&f);
        configs[1 - way].groups = one, configs[1 - way].group_count = 1;
        struct run_job first = {.config = configs[0], .end = 1, .to = f.there};
        struct run_job then = {.config = configs[1], .from = f.there, .begin = 1, .end = 2};
        run_job(&first, 1);
        run_job(&then, 2);
        assert_int_equal(count_lines(then.lines, lines[way]), 1);
        assert_int_equal(count_lines(then.lines, lines[1 - way]), 0);
        free(then.params), free(first.params);
        scratch_close(&f.s);
    }
}

static void test_other_changes_are_refused(void **state)
{
    (void)state;
    static const struct {
        int from, to;
        const char *words[3];
    } cases[] = {
        {KIND_SGD, KIND_ADAMW, {"the state of sgd for", "now uses adamw", "embed_tokens"}},
        {KIND_ADAMW, KIND_SGD_MOMENTUM, {"state of adamw", "uses sgd with momentum", "model.path"}},
        {KIND_SGD_MOMENTUM, KIND_SGD, {"sgd with momentum for", "now uses sgd,", "set the opt"}},
        {KIND_ADAMW8BIT,
         KIND_MIXED,
         {"adamw8bit for", "uses sgd with mom", "layers.0.self_attn.q"}},
        {KIND_MUON, KIND_ADAMW, {"state of muon for", "now uses adamw", "layers.0.self_attn"}},
        {KIND_MIXED, KIND_ADAMW, {"sgd with momentum for", "now uses adamw", "q_proj.weight"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct files f;
        files_open(&f);
        struct run_job first = {.config = config_of(cases[i].from), .end = 1, .to = f.there};
        struct run_job second = {
            .config = config_of(cases[i].to), .from = f.there, .begin = 1, .end = 2};
        run_job(&first, 1);
        run_job(&second, 1);
        assert_int_equal(second.status, STATUS_CONFIG);
        for (int w = 0; w < 3; w++)
            if (!strstr(second.lines, cases[i].words[w]))
                fail_msg("case %zu: no '%s' in %s", i, cases[i].words[w], second.lines);
        free(first.params);
        scratch_close(&f.s);
    }
}

/* --- checkpoints that were changed -------------------------------------------------------------- */

/* Replace a text in the momentum files by another of the same length. */
static void replace(struct scratch *s, const char *folder, const char *old, const char *new)
{
    bool found = false;
    char pattern[256];
    glob_t files;
    snprintf(pattern, sizeof pattern, "%s/optimizer/momentum*", folder);
    assert_int_equal(glob(pattern, 0, NULL, &files), 0);
    for (size_t number = 0; number < files.gl_pathc; number++) {
        const char *path = files.gl_pathv[number];
        size_t bytes, length = strlen(old);
        char *data;
        assert_ok(file_read(&s->env, path, 1 << 26, &data, &bytes));
        for (size_t i = 0; i + length <= bytes; i++)
            if (memcmp(data + i, old, length) == 0) {
                memcpy(data + i, new, length);
                found = true;
            }
        assert_ok(file_write_atomic(&s->env, path, data, bytes));
        mem_free(&s->env, data);
    }
    globfree(&files);
    if (!found)
        fail_msg("no '%s' in '%s'", old, folder);
}

/* Write state.json and COMPLETE again, with the hashes of the files as they are now. */
static void seal(struct scratch *s, const char *folder, int64_t arithmetic)
{
    struct checkpoint_state state;
    struct text text;
    char path[256], marker[CHECKPOINT_MARKER], *data;
    size_t bytes;
    snprintf(path, sizeof path, "%s/state.json", folder);
    assert_ok(file_read(&s->env, path, 1 << 26, &data, &bytes));
    assert_ok(checkpoint_state_parse(&s->env, data, bytes, path, &state));
    mem_free(&s->env, data);
    for (int i = 0; i < state.entry_count; i++) {
        struct checkpoint_entry *entry = &state.entries[i];
        char file[400];
        snprintf(file, sizeof file, "%s/%s", folder, entry->name);
        assert_ok(file_read(&s->env, file, 1 << 26, &data, &bytes));
        for (int64_t c = 0; c < entry->chunk_count; c++)
            entry->chunks[c].hash =
                XXH3_64bits(data + entry->chunks[c].begin, entry->chunks[c].bytes);
        mem_free(&s->env, data);
    }
    state.arithmetic = arithmetic;
    text_init(&text, &s->env);
    checkpoint_state_print(&state, &text);
    assert_ok(file_write_atomic(&s->env, path, text.data, text.bytes));
    checkpoint_marker(text.data, text.bytes, marker);
    snprintf(path, sizeof path, "%s/COMPLETE", folder);
    assert_ok(file_write_atomic(&s->env, path, marker, strlen(marker)));
    text_free(&text);
    checkpoint_state_free(&state);
}

static void test_changed_codes_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *changes[3][2];
        const char *message;
    } cases[] = {
        {{{"k_proj.weight.scales", "k_proj.weight.scalez"}},
         "k_proj.weight' has 8-bit codes without scales"},
        {{{"0.self_attn.q_proj.weight.scales", "0.self_attn.#_proj.weight.scales"},
          {"0.self_attn.k_proj.weight.scales", "0.self_attn.q_proj.weight.scales"},
          {"0.self_attn.#_proj.weight.scales", "0.self_attn.k_proj.weight.scales"}},
         "weight.scales' has another type or shape than the codes need"},
        {{{"0.self_attn.q_proj.weight\"", "0.self_attn.x_proj.weight\""}}, "is not in the model"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct files f;
        char folder[128];
        files_open(&f);
        struct run_job first = {.config = config_of(KIND_ADAMW8BIT), .end = 1, .to = f.there};
        struct run_job second = {
            .config = config_of(KIND_ADAMW8BIT), .from = f.there, .begin = 1, .end = 2};
        run_job(&first, 1);
        snprintf(folder, sizeof folder, "%s/step-1", f.there);
        for (int c = 0; c < 3 && cases[i].changes[c][0]; c++)
            replace(&f.s, folder, cases[i].changes[c][0], cases[i].changes[c][1]);
        seal(&f.s, folder, OPS_ARITHMETIC);
        run_job(&second, 1);
        assert_int_equal(second.status, STATUS_FORMAT);
        if (!strstr(second.lines, cases[i].message) || !strstr(second.lines, "optimizer/momentum"))
            fail_msg("case %zu: %s", i, second.lines);
        free(first.params);
        scratch_close(&f.s);
    }
}

static void test_older_arithmetic_is_told(void **state)
{
    (void)state;
    for (int arithmetic = 0; arithmetic <= OPS_ARITHMETIC; arithmetic++) {
        struct files f;
        char folder[128];
        files_open(&f);
        struct run_job first = {.config = config_of(KIND_ADAMW), .end = 1, .to = f.there};
        struct run_job second = {
            .config = config_of(KIND_ADAMW), .from = f.there, .begin = 1, .end = 2};
        run_job(&first, 1);
        snprintf(folder, sizeof folder, "%s/step-1", f.there);
        seal(&f.s, folder, arithmetic);
        run_job(&second, 2);
        assert_int_equal(second.status, STATUS_OK);
        assert_int_equal(count_lines(second.lines, "CPU arithmetic differed in the last bits"),
                         arithmetic < OPS_ARITHMETIC);
        free(first.params), free(second.params);
        scratch_close(&f.s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_run_continues_on_any_layout),
        cmocka_unit_test(test_tp_ranks_continue),
        cmocka_unit_test(test_adamw_is_converted),
        cmocka_unit_test(test_conversions_are_counted),
        cmocka_unit_test(test_other_changes_are_refused),
        cmocka_unit_test(test_changed_codes_are_named),
        cmocka_unit_test(test_older_arithmetic_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
