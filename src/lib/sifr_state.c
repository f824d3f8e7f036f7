/* sifr_state -- parameters by name, safetensors files, checkpoints of a program's model. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "lib/lib_impl.h"
#include "train/checkpoint/checkpoint_keep.h"
#include "train/checkpoint/resume.h"
#include "train/weights/safetensors_write.h"

/* --- parameters ----------------------------------------------------------------------------- */

static enum status find_param(struct sifr_trainer *t, const char *name, const float *values,
                              int64_t count, int *tensor)
{
    struct env *env = &t->context->env;
    const struct unit_graph *graph = &t->model.graph;
    if (!name || !values)
        return FAIL(env, CONFIG,
                    "a parameter is read and written by name, with an array of values");
    for (*tensor = 0; *tensor < graph->tensor_count; (*tensor)++)
        if (strcmp(graph->tensors[*tensor].name, name) == 0)
            break;
    if (*tensor == graph->tensor_count)
        return FAIL(env, CONFIG, "the model has no parameter '%s'", name);
    int64_t elements = unit_tensor_whole(&graph->tensors[*tensor]);
    if (elements != count)
        return FAIL(env, CONFIG, "parameter '%s' has %lld elements, not %lld", name,
                    (long long)elements, (long long)count);
    return STATUS_OK;
}

int sifr_read(struct sifr_trainer *t, const char *name, float *values, int64_t count)
{
    int tensor;
    enum status st = call_begin(t->context);
    if (st == STATUS_OK)
        st = find_param(t, name, values, count, &tensor);
    if (st == STATUS_OK)
        st = zero_read(t->zero, tensor, 0, count, values);
    return call_end_collective(t->context, st);
}

int sifr_write(struct sifr_trainer *t, const char *name, const float *values, int64_t count)
{
    int tensor;
    enum status st = call_begin(t->context);
    if (st == STATUS_OK)
        st = find_param(t, name, values, count, &tensor);
    if (st == STATUS_OK)
        st = zero_write(t->zero, tensor, 0, count, values);
    if (st == STATUS_OK)
        st = zero_publish(t->zero, t->updates);
    return call_end_collective(t->context, st);
}

int64_t sifr_param_count(const struct sifr_trainer *t)
{
    return unit_graph_count(&t->model.graph);
}

/* --- safetensors ---------------------------------------------------------------------------- */

static enum status fill_tensor(void *user, int i, int64_t first, int64_t count, void *out)
{
    struct sifr_trainer *t = user;
    return zero_read(t->zero, i, first, count, out);
}

static enum status save(struct sifr_trainer *t, const char *path)
{
    struct env *env = &t->context->env;
    const struct unit_graph *graph = &t->model.graph;
    struct safetensors_layout *layout;
    struct safetensors_entry *entries;
    TRY(mem_alloc_array(env, MEM_OTHER, "file", (size_t)graph->tensor_count, sizeof *entries,
                        &entries));
    for (int i = 0; i < graph->tensor_count; i++) {
        const struct unit_tensor *tensor = &graph->tensors[i];
        entries[i] = (struct safetensors_entry){
            .name = tensor->name, .type = DTYPE_F32, .rank = tensor->dims};
        memcpy(entries[i].shape, tensor->shape, sizeof tensor->shape);
    }
    enum status st = safetensors_layout_create(env, entries, graph->tensor_count, NULL, 0, &layout);
    if (st == STATUS_OK) {
        st = safetensors_write(env, t->context->rank == 0 ? path : NULL, layout, fill_tensor, t);
        safetensors_layout_destroy(layout);
    }
    mem_free(env, entries);
    return st;
}

int sifr_save(struct sifr_trainer *t, const char *path)
{
    enum status st = call_begin(t->context);
    if (st == STATUS_OK)
        st = path ? save(t, path) : FAIL(&t->context->env, CONFIG, "sifr_save: there is no path");
    return call_end_collective(t->context, st);
}

static enum status load_tensor(struct sifr_trainer *t, const struct safetensors *file, int i,
                               const char *path)
{
    enum { CHUNK = 1 << 20 };
    struct env *env = &t->context->env;
    const struct unit_tensor *tensor = &t->model.graph.tensors[i];
    const struct safetensor *from = safetensors_find(file, tensor->name);
    int64_t count = unit_tensor_whole(tensor);
    float *values;
    if (!from)
        return FAIL(env, FORMAT, "'%s' has no tensor '%s'", path, tensor->name);
    if (from->rank != tensor->dims ||
        memcmp(from->shape, tensor->shape, (size_t)tensor->dims * sizeof *tensor->shape) != 0)
        return FAIL(env, FORMAT, "'%s': tensor '%s' has another shape than the model's", path,
                    tensor->name);
    TRY(mem_alloc_array(env, MEM_OTHER, "file", CHUNK, sizeof *values, &values));
    enum status st = STATUS_OK;
    for (int64_t first = 0; st == STATUS_OK && first < count; first += CHUNK) {
        int64_t some = count - first < CHUNK ? count - first : CHUNK;
        st = safetensors_read(file, from, first, some, DTYPE_F32, values);
        if (st == STATUS_OK)
            st = zero_write(t->zero, i, first, some, values);
    }
    mem_free(env, values);
    return st;
}

static enum status load(struct sifr_trainer *t, const char *path)
{
    struct safetensors *file;
    TRY(safetensors_open(&t->context->env, path, &file));
    enum status st = STATUS_OK;
    for (int i = 0; st == STATUS_OK && i < t->model.graph.tensor_count; i++)
        st = load_tensor(t, file, i, path);
    safetensors_close(file);
    TRY(st);
    return zero_publish(t->zero, t->updates);
}

int sifr_load(struct sifr_trainer *t, const char *path)
{
    enum status st = call_begin(t->context);
    if (st == STATUS_OK)
        st = path ? load(t, path) : FAIL(&t->context->env, CONFIG, "sifr_load: there is no path");
    return call_end_collective(t->context, st);
}

/* --- checkpoints ---------------------------------------------------------------------------- */

struct saves {
    char *folder;
    struct checkpoint_config config;
    struct checkpoint_blob blob; /* a copy of the program's own state */
    struct checkpoint_saver *saver;
    struct checkpoint_result last; /* how the last save ended */
    bool unread;                   /* the program has not been told by a call yet */
};

static enum status open_saver(struct sifr_trainer *t, struct saves *s)
{
    struct session *session = &t->context->session;
    struct checkpoint_setup setup = {.run = s->folder,
                                     .folder = s->folder,
                                     .graph = &t->model.graph,
                                     .own = &s->blob,
                                     .zero = t->zero,
                                     .device = session->device,
                                     .comm = session->comm,
                                     .type = trainer_type(t),
                                     .config = &s->config,
                                     .config_yaml = "",
                                     .background = t->options.checkpoint_async != 0,
                                     .from_snapshot = t->options.checkpoint_async != 0};
    TRY(fingerprint_take(&t->context->env, "cpu", "", &setup.print));
    return checkpoint_saver_create(&t->context->env, &setup, &s->saver);
}

static enum status open_saves(struct sifr_trainer *t, const char *folder)
{
    struct env *env = &t->context->env;
    if (!t->saves) {
        int64_t keep = t->options.checkpoint_keep;
        TRY(mem_alloc(env, MEM_OTHER, "saves", sizeof *t->saves, &t->saves));
        t->saves->config = (struct checkpoint_config){.every = 1,
                                                      .keep = keep > 0 ? keep : INT64_MAX,
                                                      .file_bytes = (int64_t)5 << 30,
                                                      .async = t->options.checkpoint_async != 0};
    }
    if (t->saves->folder && strcmp(t->saves->folder, folder) == 0)
        return STATUS_OK;
    checkpoint_saver_destroy(t->saves->saver); /* of another folder */
    mem_free(env, t->saves->folder);
    t->saves->saver = NULL;
    t->saves->folder = NULL;
    TRY(mem_strdup(env, folder, &t->saves->folder));
    return open_saver(t, t->saves);
}

/* Fetch the result of the last save if it has ended, or wait for its end. */
static void fetch_result(struct sifr_trainer *t, bool wait)
{
    struct saves *s = t->saves;
    if (!s || !s->saver || !checkpoint_saver_result(s->saver, wait, &s->last))
        return;
    s->unread = true;
    const struct sifr_saved saved = {.size = sizeof saved,
                                     .step = s->last.step,
                                     .path = s->last.saved ? s->last.path : "",
                                     .error = s->last.saved ? "" : s->last.error,
                                     .seconds = s->last.seconds};
    if (t->options.saved)
        t->options.saved(t->options.user, &saved);
}

void saves_poll(struct sifr_trainer *t)
{
    fetch_result(t, false);
}

/* The failure of the last save, once. All ranks get the same. */
static enum status end_save(struct sifr_trainer *t)
{
    struct saves *s = t->saves;
    fetch_result(t, true);
    if (!s || !s->unread)
        return STATUS_OK;
    s->unread = false;
    if (s->last.saved)
        return STATUS_OK;
    return log_fail(t->context->env.log, s->last.status, __FILE__, __LINE__,
                    "the checkpoint of step %lld was not saved: %s", (long long)s->last.step,
                    s->last.error);
}

void saves_destroy(struct sifr_trainer *t)
{
    if (!t->saves)
        return;
    fetch_result(t, true);
    checkpoint_saver_destroy(t->saves->saver);
    mem_free(&t->context->env, (void *)t->saves->blob.data);
    mem_free(&t->context->env, t->saves->folder);
    mem_free(&t->context->env, t->saves);
}

static enum status copy_blob(struct sifr_trainer *t, const void *blob, size_t bytes)
{
    struct checkpoint_blob *copy = &t->saves->blob;
    void *data = NULL;
    if (bytes > 0) {
        TRY(mem_alloc(&t->context->env, MEM_OTHER, "program state", bytes, &data));
        memcpy(data, blob, bytes);
    }
    mem_free(&t->context->env, (void *)copy->data);
    *copy = (struct checkpoint_blob){data, bytes};
    return STATUS_OK;
}

static enum status begin_save(struct sifr_trainer *t)
{
    struct loss_scale scale = engine_loss_scale(t->engine);
    const struct checkpoint_progress progress = {.step = t->steps,
                                                 .updates = t->updates,
                                                 .skipped = t->steps - t->updates,
                                                 .loss = NAN,
                                                 .scaled = zero_wants_scaling(t->zero),
                                                 .scale = scale};
    return checkpoint_saver_save(t->saves->saver, &progress);
}

int sifr_checkpoint(struct sifr_trainer *t, const char *folder, const void *blob, size_t bytes)
{
    enum status st = call_begin(t->context);
    if (st == STATUS_OK && (!folder || (!blob && bytes > 0)))
        st = FAIL(&t->context->env, CONFIG, "sifr_checkpoint: there is no folder, or no state");
    if (st == STATUS_OK)
        st = call_agree(t->context, "checkpoint", t->number, (uint64_t)t->steps);
    if (st != STATUS_OK)
        return call_end_collective(t->context, st);
    enum status last = end_save(t); /* all ranks know it: no rank waits for another */
    st = open_saves(t, folder);
    if (st == STATUS_OK)
        st = copy_blob(t, blob, bytes);
    if (st == STATUS_OK)
        st = begin_save(t);
    if (st != STATUS_OK)
        return call_end_collective(t->context, st);
    if (!t->options.checkpoint_async)
        st = end_save(t);
    return call_end(t->context, last != STATUS_OK ? last : st);
}

int sifr_checkpoint_wait(struct sifr_trainer *t)
{
    enum status st = call_begin(t->context);
    return call_end(t->context, st != STATUS_OK ? st : end_save(t));
}

/* Read the program's own state of a checkpoint; every rank reads it. */
static enum status read_blob(struct sifr_trainer *t, const char *folder, void *blob, size_t *bytes)
{
    struct env *env = &t->context->env;
    size_t room = blob && bytes ? *bytes : 0, there = 0;
    char *step = NULL, *path = NULL, *data = NULL;
    enum status st;
    TRY_OR(done, checkpoint_keep_path(env, folder, "", t->steps, "", &step));
    TRY_OR(done, path_join(env, step, CHECKPOINT_OWN_FILE, &path));
    if (file_exists(path))
        TRY_OR(done, file_read(env, path, (size_t)1 << 30, &data, &there));
    if (bytes)
        *bytes = there;
    if (there > room && blob)
        st = FAIL(env, CONFIG, "'%s' has %zu bytes, more than the %zu given to sifr_resume", path,
                  there, room);
    else if (blob)
        memcpy(blob, data ? data : "", there);
done:
    mem_free(env, data);
    mem_free(env, path);
    mem_free(env, step);
    return st;
}

static enum status resume(struct sifr_trainer *t, const char *folder, int64_t *step, void *blob,
                          size_t *bytes)
{
    struct env *env = &t->context->env;
    struct fingerprint print;
    struct checkpoint_progress progress;
    struct resume_load load;
    bool found;
    TRY(fingerprint_take(env, "cpu", "", &print));
    const struct resume_source source = {.folder = folder,
                                         .wanted = t->context->rank == 0,
                                         .config_yaml = "",
                                         .print = &print,
                                         .workers = zero_roster(t->zero)->workers};
    TRY(resume_run(env, &source, t->context->session.comm, &t->model.graph, t->zero, &progress,
                   &load, &found));
    *step = 0;
    if (!found) {
        if (bytes)
            *bytes = 0;
        return STATUS_OK;
    }
    *step = t->steps = progress.step;
    t->updates = progress.updates;
    if (progress.scaled)
        engine_set_loss_scale(t->engine, progress.scale);
    return read_blob(t, folder, blob, bytes);
}

int sifr_resume(struct sifr_trainer *t, const char *folder, int64_t *step, void *blob,
                size_t *bytes)
{
    int64_t unused;
    enum status st = call_begin(t->context);
    if (st == STATUS_OK)
        st = folder ? resume(t, folder, step ? step : &unused, blob, bytes)
                    : FAIL(&t->context->env, CONFIG, "sifr_resume: there is no folder");
    return call_end_collective(t->context, st);
}
