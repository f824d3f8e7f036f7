#include "train/models/model_weights.h"
#include <stdio.h>
#include <string.h>
#include <xxhash.h>
#include "base/file.h"
#include "base/progress.h"
#include "base/text.h"
#include "train/weights/model_file.h"
#include "train/weights/safetensors.h"
#include "train/weights/weight_index.h"

enum { CHUNK = 1 << 20 };                       /* elements compared or copied at once */
enum { NAMES_SHOWN = 4 };                       /* of each kind of difference */
enum { PRINT_WINDOWS = 16, PRINT_COUNT = 256 }; /* of a fingerprint, elements of each */
#define JSON_BYTES_MAX ((size_t)64 << 20)       /* of an index or a config.json */

/* --- opening -------------------------------------------------------------------------------- */

void weight_files_close(struct weight_files *weights)
{
    for (int i = 0; i < weights->count; i++)
        safetensors_close(weights->files[i]);
    mem_free(weights->env, weights->files);
}

static enum status weights_room(struct weight_files *weights, int most)
{
    return mem_alloc_array(weights->env, MEM_OTHER, "weight files", (size_t)most,
                           sizeof *weights->files, &weights->files);
}

static enum status weights_add(struct weight_files *weights, const char *path)
{
    TRY(safetensors_open(weights->env, path, &weights->files[weights->count]));
    weights->count++;
    return STATUS_OK;
}

static enum status weights_add_inside(struct weight_files *weights, const char *folder,
                                      const char *name)
{
    char *path;
    TRY(path_join(weights->env, folder, name, &path));
    enum status st = weights_add(weights, path);
    mem_free(weights->env, path);
    return st;
}

static enum status open_index(struct weight_files *weights, const char *folder, const char *path)
{
    struct weight_index index;
    char *text;
    size_t bytes;
    TRY(file_read(weights->env, path, JSON_BYTES_MAX, &text, &bytes));
    enum status st = weight_index_parse(weights->env, text, bytes, path, &index);
    mem_free(weights->env, text);
    TRY(st);
    st = weights_room(weights, index.count);
    for (int i = 0; st == STATUS_OK && i < index.count; i++)
        st = file_is_missing(weights->env, folder, index.files[i])
                 ? FAIL(weights->env, CONFIG,
                        "'%s' lists %s, which is not in the folder; copy the whole model directory",
                        path, index.files[i])
                 : weights_add_inside(weights, folder, index.files[i]);
    weight_index_free(&index);
    return st;
}

static enum status open_folder(struct weight_files *weights, const char *folder)
{
    enum status st;
    char *single, *index;
    TRY(path_join(weights->env, folder, "model.safetensors", &single));
    TRY_OR(undo_single, path_join(weights->env, folder, "model.safetensors.index.json", &index));
    TRY_OR(undo_index, model_file_check_weights(weights->env, folder));
    if (file_exists(single) || !file_exists(index)) {
        TRY_OR(undo_index, weights_room(weights, 1));
        st = weights_add(weights, single);
    } else {
        st = open_index(weights, folder, index);
    }
undo_index:
    mem_free(weights->env, index);
undo_single:
    mem_free(weights->env, single);
    return st;
}

/* Open only files that state.json lists, because only those are verified. */
static enum status weights_add_role(struct weight_files *weights, const struct model_source *source,
                                    enum checkpoint_role role)
{
    const struct checkpoint_state *state = checkpoint_state(source->checkpoint);
    for (int i = 0; i < state->entry_count; i++)
        if (state->entries[i].role == role)
            TRY(weights_add_inside(weights, source->folder, state->entries[i].name));
    return STATUS_OK;
}

enum status weight_files_open_role(struct weight_files *weights, const struct model_source *source,
                                   enum checkpoint_role role)
{
    TRY(weights_room(weights, checkpoint_state(source->checkpoint)->entry_count));
    return weights_add_role(weights, source, role);
}

enum status weight_files_open(struct weight_files *weights, const struct model_source *source)
{
    if (source->checkpoint) {
        TRY(weight_files_open_role(weights, source, source->role));
        /* A tensor is taken from the first file that has it. Only the model files have all. */
        return source->role == CHECKPOINT_MODEL
                   ? STATUS_OK
                   : weights_add_role(weights, source, CHECKPOINT_MODEL);
    }
    if (!source->file)
        return open_folder(weights, source->folder);
    TRY(weights_room(weights, 1));
    return weights_add(weights, source->file);
}

/* --- matching ------------------------------------------------------------------------------- */

static struct weight_found find_name(const struct weight_files *weights, const char *name)
{
    for (int i = 0; i < weights->count; i++) {
        const struct safetensor *tensor = safetensors_find(weights->files[i], name);
        if (tensor != NULL)
            return (struct weight_found){weights->files[i], tensor};
    }
    return (struct weight_found){0};
}

const char *weight_files_bare(const char *name)
{
    static const char *const prefixes[] = {"transformer.", "model."};
    for (int i = 0; i < 2; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return name + strlen(prefixes[i]);
    return name;
}

struct weight_found weight_files_find(const struct weight_files *weights, const char *name)
{
    struct weight_found found = find_name(weights, name);
    return found.tensor != NULL ? found : find_name(weights, weight_files_bare(name));
}

static bool same_shape(const struct unit_tensor *ours, const struct safetensor *theirs)
{
    bool same = ours->dims == theirs->rank;
    for (int d = 0; same && d < ours->dims; d++)
        same = ours->shape[d] == theirs->shape[d];
    return same;
}

/* --- reporting differences ------------------------------------------------------------------ */

struct differences {
    struct text missing, unexpected, shapes;
    int missing_count, unexpected_count, shape_count;
};

static void add_name(struct text *text, int *count, const char *name)
{
    if (*count < NAMES_SHOWN)
        text_printf(text, "%s%s", *count > 0 ? ", " : "", name);
    else if (*count == NAMES_SHOWN)
        text_add(text, ", ...");
    ++*count;
}

static void add_shape(struct differences *d, const struct unit_tensor *ours,
                      const struct safetensor *theirs)
{
    char line[512];
    int n = snprintf(line, sizeof line, "%s [", theirs->name);
    for (int i = 0; i < theirs->rank && n < (int)sizeof line; i++)
        n += snprintf(line + n, sizeof line - (size_t)n, "%s%lld", i > 0 ? "," : "",
                      (long long)theirs->shape[i]);
    for (int i = 0; i < ours->dims && n < (int)sizeof line; i++)
        n += snprintf(line + n, sizeof line - (size_t)n, "%s%lld", i > 0 ? "," : "] instead of [",
                      (long long)ours->shape[i]);
    if (n < (int)sizeof line)
        snprintf(line + n, sizeof line - (size_t)n, "]");
    add_name(&d->shapes, &d->shape_count, line);
}

static void collect(const struct weight_files *weights, const struct unit_graph *graph,
                    const struct tensor_names *names, bool tied, struct differences *d)
{
    for (int i = 0; i < graph->tensor_count; i++) {
        struct weight_found found = weight_files_find(weights, graph->tensors[i].name);
        if (found.tensor == NULL)
            add_name(&d->missing, &d->missing_count, graph->tensors[i].name);
        else if (!same_shape(&graph->tensors[i], found.tensor))
            add_shape(d, &graph->tensors[i], found.tensor);
    }
    for (int f = 0; f < weights->count; f++)
        for (int i = 0; i < safetensors_count(weights->files[f]); i++) {
            const char *name = safetensors_at(weights->files[f], i)->name;
            bool second_head = tied && strcmp(name, "lm_head.weight") == 0;
            bool constant = text_ends_with(name, ".attn.bias") || /* in old files */
                            text_ends_with(name, ".attn.masked_bias") ||
                            text_ends_with(name, ".rotary_emb.inv_freq");
            if (!second_head && !constant && tensor_names_find(names, name) < 0)
                add_name(&d->unexpected, &d->unexpected_count, name);
        }
}

static void add_kind(struct text *text, const char *kind, int count, const struct text *names)
{
    if (count > 0)
        text_printf(text, "; %d %s (%s)", count, kind, text_string(names));
}

/* What to do about it. */
static const char *way_out(const struct differences *d)
{
    bool head = d->missing_count == 1 && d->unexpected_count + d->shape_count == 0 &&
                strcmp(text_string(&d->missing), "lm_head.weight") == 0;
    return head
               ? "if the embedding is also the head, set tie_word_embeddings to true in config.json"
               : "config.json must describe these weights; copy both from one source";
}

static enum status match_names(const struct weight_files *weights, const struct unit_graph *graph,
                               bool tied, const char *path)
{
    struct env *env = weights->env;
    struct differences d = {0};
    struct tensor_names names;
    struct text all;
    enum status st = STATUS_OK;
    TRY(tensor_names_create(env, graph, weight_files_bare, &names));
    text_init(&d.missing, env);
    text_init(&d.unexpected, env);
    text_init(&d.shapes, env);
    text_init(&all, env);
    collect(weights, graph, &names, tied, &d);
    tensor_names_free(&names);
    add_kind(&all, "missing", d.missing_count, &d.missing);
    add_kind(&all, "unexpected", d.unexpected_count, &d.unexpected);
    add_kind(&all, "of another shape", d.shape_count, &d.shapes);
    if (d.missing_count + d.unexpected_count + d.shape_count > 0)
        st = FAIL(env, FORMAT, "the tensors at '%s' are not those of the model%s; %s", path,
                  text_string(&all), way_out(&d));
    text_free(&d.missing);
    text_free(&d.unexpected);
    text_free(&d.shapes);
    text_free(&all);
    return st;
}

/* --- a tied head that is stored twice ------------------------------------------------------- */

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* If a tied head is stored nevertheless, it must equal the embedding. */
static enum status check_head(const struct weight_files *weights, const struct unit_graph *graph,
                              float *chunk)
{
    struct env *env = weights->env;
    struct weight_found head = find_name(weights, "lm_head.weight");
    struct weight_found wte = weight_files_find(weights, graph->tensors[0].name);
    float *other = chunk + CHUNK;
    if (head.tensor == NULL)
        return STATUS_OK;
    bool same = same_shape(&graph->tensors[0], head.tensor);
    for (int64_t first = 0; same && first < wte.tensor->count; first += CHUNK) {
        int64_t count = smaller(CHUNK, wte.tensor->count - first);
        TRY(safetensors_read(head.file, head.tensor, first, count, DTYPE_F32, chunk));
        TRY(safetensors_read(wte.file, wte.tensor, first, count, DTYPE_F32, other));
        same = memcmp(chunk, other, (size_t)count * sizeof *chunk) == 0;
    }
    return same ? STATUS_OK
                : FAIL(env, FORMAT,
                       "lm_head.weight is not the embedding, although config.json says the two are "
                       "tied; set tie_word_embeddings to false there");
}

enum status weight_files_match(const struct weight_files *weights, const struct unit_graph *graph,
                               bool tied, const char *path)
{
    float *chunk;
    TRY(match_names(weights, graph, tied, path));
    if (!tied)
        return STATUS_OK;
    TRY(mem_alloc_array(weights->env, MEM_OTHER, "weights compared", 2 * CHUNK, sizeof *chunk,
                        &chunk));
    enum status st = check_head(weights, graph, chunk);
    mem_free(weights->env, chunk);
    return st;
}

/* --- loading -------------------------------------------------------------------------------- */

static enum status load_all(const struct weight_files *weights, const struct model *model,
                            struct zero *zero, const char *path)
{
    const struct unit_graph *graph = model_graph(model);
    struct progress_task task;
    uint64_t total = 0;
    float *chunk;
    TRY(weight_files_match(weights, graph, model_config(model)->tied == 1, path));
    TRY(mem_alloc_array(weights->env, MEM_OTHER, "weights on their way", CHUNK, sizeof *chunk,
                        &chunk));
    enum status st = STATUS_OK;
    for (int i = 0; i < graph->tensor_count; i++)
        total += (uint64_t)zero_state_held(zero, ZERO_MASTER, i).count * sizeof *chunk;
    progress_begin(&task, "loading the weights", NULL, total);
    for (int i = 0; i < graph->tensor_count; i++) {
        struct weight_found found = weight_files_find(weights, graph->tensors[i].name);
        struct zero_range held = zero_state_held(zero, ZERO_MASTER, i);
        int64_t end = held.first + held.count;
        for (int64_t first = held.first; st == STATUS_OK && first < end; first += CHUNK) {
            int64_t count = smaller(CHUNK, end - first);
            st = safetensors_read(found.file, found.tensor, first, count, DTYPE_F32, chunk);
            if (st == STATUS_OK)
                st = zero_write(zero, i, first, count, chunk);
            progress_advance(weights->env, &task, (uint64_t)count * sizeof *chunk);
        }
    }
    progress_end(weights->env, &task);
    mem_free(weights->env, chunk);
    return st == STATUS_OK ? zero_publish(zero, 0) : st;
}

enum status model_weights_load(struct env *env, const struct model_source *source,
                               const struct model *model, struct zero *zero)
{
    struct weight_files weights = {.env = env};
    enum status st = weight_files_open(&weights, source);
    if (st == STATUS_OK)
        st = load_all(&weights, model, zero, source->file ? source->file : source->folder);
    weight_files_close(&weights);
    return st;
}

/* --- a fingerprint -------------------------------------------------------------------------- */

/* Hash name, type, shape and evenly spaced windows of elements; these cover all of a small
 * tensor. */
static enum status print_tensor(const struct safetensors *file, const struct safetensor *tensor,
                                uint64_t *print)
{
    uint64_t window[PRINT_COUNT]; /* large enough for every type */
    int64_t step = tensor->count / PRINT_WINDOWS;
    step = step > PRINT_COUNT ? step : PRINT_COUNT;
    *print = XXH3_64bits_withSeed(tensor->name, strlen(tensor->name), *print + tensor->type);
    *print =
        XXH3_64bits_withSeed(tensor->shape, (size_t)tensor->rank * sizeof *tensor->shape, *print);
    for (int64_t first = 0; first < tensor->count; first += step) {
        int64_t count = smaller(PRINT_COUNT, tensor->count - first);
        TRY(safetensors_read(file, tensor, first, count, tensor->type, window));
        *print = XXH3_64bits_withSeed(window, (size_t)count * dtype_bytes(tensor->type), *print);
    }
    return STATUS_OK;
}

enum status model_weights_fingerprint(struct env *env, const struct model_source *source,
                                      uint64_t *print)
{
    struct weight_files weights = {.env = env};
    char *path, *text = NULL;
    size_t bytes = 0;
    TRY(path_join(env, source->folder, "config.json", &path));
    enum status st = file_read(env, path, JSON_BYTES_MAX, &text, &bytes);
    mem_free(env, path);
    TRY(st);
    *print = XXH3_64bits_withSeed(text, bytes, 0);
    mem_free(env, text);
    st = weight_files_open(&weights, source);
    for (int f = 0; st == STATUS_OK && f < weights.count; f++)
        for (int i = 0; st == STATUS_OK && i < safetensors_count(weights.files[f]); i++)
            st = print_tensor(weights.files[f], safetensors_at(weights.files[f], i), print);
    weight_files_close(&weights);
    return st;
}
