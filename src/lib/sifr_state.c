/* sifr_state -- parameters by name, safetensors files, checkpoints of a program's model. */
#include <stdlib.h>
#include <string.h>

#include "lib/lib_impl.h"
#include "train/weights/safetensors_write.h"

/* --- parameters ----------------------------------------------------------------------------- */

static enum status find_param(struct sifr_trainer *t, const char *name, int64_t count, int *tensor)
{
    struct env *env = &t->context->env;
    const struct unit_graph *graph = &t->model.graph;
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
    call_begin(t->context);
    enum status st = find_param(t, name, count, &tensor);
    if (st == STATUS_OK)
        st = zero_read(t->zero, tensor, 0, count, values);
    return call_end_collective(t->context, st);
}

int sifr_write(struct sifr_trainer *t, const char *name, const float *values, int64_t count)
{
    int tensor;
    call_begin(t->context);
    enum status st = find_param(t, name, count, &tensor);
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
    call_begin(t->context);
    return call_end_collective(t->context, save(t, path));
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
    call_begin(t->context);
    return call_end_collective(t->context, load(t, path));
}

int sifr_checkpoint(struct sifr_trainer *t, const char *folder, const void *blob, size_t bytes)
{
    (void)folder, (void)blob, (void)bytes;
    call_begin(t->context);
    return call_end_collective(t->context, FAIL(&t->context->env, CONFIG, "not written yet"));
}

int sifr_checkpoint_wait(struct sifr_trainer *t)
{
    call_begin(t->context);
    return call_end_collective(t->context, STATUS_OK);
}

int sifr_resume(struct sifr_trainer *t, const char *folder, int64_t *step, void *blob,
                size_t *bytes)
{
    (void)folder, (void)blob, (void)bytes;
    *step = 0;
    call_begin(t->context);
    return call_end_collective(t->context, STATUS_OK);
}
