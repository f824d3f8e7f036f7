/* job_rig -- runs of a small model that resume from a checkpoint and save another, on ranks that
 * are threads of one process; and ways to change a checkpoint. */
#ifndef TESTS_TRAIN_JOB_RIG_H
#define TESTS_TRAIN_JOB_RIG_H
#include <glob.h>
#include <xxhash.h>
#include "engine/ranks.h"
#include "scratch.h"
#include "train/checkpoint/resume.h"

/* --- a run that resumes, takes a step, and saves ---------------------------------------------- */

struct run_job {
    struct rig_config config;
    const char *from, *to; /* folders of checkpoints; NULL: none */
    int begin, end;        /* steps */
    char lines[4096];      /* the log of rank 0 */
    enum status status;
    uint64_t predicted; /* disk space of the checkpoint, by the saver */
    float *params;
    int64_t count;
};

static inline void keep_line(void *user, enum log_level level, const char *line)
{
    struct run_job *job = user;
    size_t used = strlen(job->lines);
    (void)level;
    snprintf(job->lines + used, sizeof job->lines - used, "%s\n", line);
}

static inline const char *yaml_of(const struct rig_config *config)
{
    return config->tp > 1 ? "parallel:\n  tp: 2\n" : "parallel:\n  tp: 1\n";
}

static const struct fingerprint machine = {.cpu = "A", .blas = "B", .device = "cpu"};

static inline enum status resume(struct run_job *job, struct rig *rig)
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

static inline void save(struct run_job *job, struct rig *rig)
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
    job->predicted = checkpoint_saver_bytes(saver);
    checkpoint_saver_destroy(saver);
}

static inline void *run_rank_of(void *argument)
{
    struct run_job *job = argument;
    struct rig rig;
    struct env env;
    assert_int_equal(env_create(&env, keep_line, job, LOG_INFO, 1), STATUS_OK);
    assert_ok(rig_create(&env, job->config, &rig));
    assert_ok(zero_settle(rig.zero));
    if (job->from) /* all parameters must come from the checkpoint */
        assert_ok(zero_init(rig.zero, 2));
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
static inline void run_job(struct run_job *job, int ranks)
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

static inline void expect_same_params(struct run_job *a, struct run_job *b)
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

static inline void files_open(struct files *f)
{
    scratch_open(&f->s);
    strcpy(f->plain, scratch_path(&f->s, "plain"));
    strcpy(f->there, scratch_path(&f->s, "there"));
    strcpy(f->back, scratch_path(&f->s, "back"));
}

/* The tensor files of two checkpoints, `plain` and `back`, have the same names and bytes. */
static inline void expect_same_files(struct files *f, int step)
{
    char command[512];
    for (int i = 0; i < 2; i++) {
        const char *a = i == 0 ? f->plain : f->back, *b = i == 0 ? f->back : f->plain;
        snprintf(
            command, sizeof command,
            "cd %s/step-%d && for i in *.safetensors optimizer/*; do test -e \"$i\" || continue; "
            "cmp \"$i\" \"%s/step-%d/$i\" || exit 1; done",
            a, step, b, step);
        assert_int_equal(system(command), 0);
    }
}

/* --- checkpoints that are changed ------------------------------------------------------------ */

/* Replace a text in the files that match `pattern` by another of the same length. */
static inline void replace(struct scratch *s, const char *pattern, const char *old, const char *new)
{
    bool found = false;
    glob_t files;
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
        fail_msg("no '%s' in '%s'", old, pattern);
}

/* Write state.json and COMPLETE again, with the hashes of the files as they are now. */
static inline void seal(struct scratch *s, const char *folder, int64_t arithmetic)
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

#endif
