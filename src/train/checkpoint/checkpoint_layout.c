/* checkpoint_layout -- computes the layout; does no I/O. */
#include "train/checkpoint/checkpoint_layout.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Margin for file-system blocks, folders and small files, on a disk that is nearly full. */
enum { SPARE_BYTES = 1 << 20 };

const char *checkpoint_role_word(enum checkpoint_role role)
{
    static const char *const words[] = {
#define X(name, word) word,
        CHECKPOINT_ROLE_LIST(X)
#undef X
    };
    return words[role];
}

/* --- files ---------------------------------------------------------------------------------- */

/* The first tensor after the file that begins with `tensor`. A file contains as many complete
 * pieces of the model as fit, and at least one. */
static int file_end(const struct unit_graph *graph, int tensor, enum dtype type, int64_t most_bytes)
{
    int64_t bytes = 0;
    int q = 0;
    while (q < graph->param_count && graph->params[q].first_tensor < tensor)
        q++;
    for (int next; q < graph->param_count; q = next) {
        int64_t more = 0;
        for (next = q; next < graph->param_count; next++) {
            if (graph->params[next].piece != graph->params[q].piece)
                break;
            more += unit_param_whole(graph, next) * (int64_t)dtype_bytes(type);
        }
        if (bytes > 0 && bytes + more > most_bytes)
            return graph->params[q].first_tensor;
        bytes += more;
    }
    return graph->tensor_count;
}

static int count_files(const struct unit_graph *graph, enum dtype type, int64_t most_bytes)
{
    int count = 0;
    for (int t = 0; t < graph->tensor_count; count++)
        t = file_end(graph, t, type, most_bytes);
    return count;
}

static void name_file(struct checkpoint_file *file, int number, int count)
{
    const char *folder = file->role == CHECKPOINT_MODEL ? "" : "optimizer/";
    const char *word = checkpoint_role_word(file->role);
    if (count == 1)
        snprintf(file->name, sizeof file->name, "%s%s.safetensors", folder, word);
    else
        snprintf(file->name, sizeof file->name, "%s%s-%05d-of-%05d.safetensors", folder, word,
                 number, count);
}

bool checkpoint_layout_is_name(const char *name)
{
    for (enum checkpoint_role role = CHECKPOINT_MODEL; role < CHECKPOINT_ROLES; role++) {
        struct checkpoint_file file = {.role = role};
        int number = 1, count = 1;
        name_file(&file, number, count);
        size_t bytes = strlen(file.name) - strlen(".safetensors");
        if (strncmp(name, file.name, bytes) != 0)
            continue;
        if (sscanf(name + bytes, "-%d-of-%d", &number, &count) == 2)
            name_file(&file, number, count);
        if (strcmp(name, file.name) == 0)
            return true;
    }
    return false;
}

static enum status lay_out_tensors(struct env *env, const struct unit_graph *graph,
                                   struct checkpoint_file *file)
{
    static const struct safetensors_pair notes[] = {{"sifr.version", SIFR_VERSION}};
    struct safetensors_entry *entries;
    TRY(mem_alloc_array(env, MEM_OTHER, "tensor list", (size_t)file->tensor_count, sizeof *entries,
                        &entries));
    for (int i = 0; i < file->tensor_count; i++) {
        const struct unit_tensor *tensor = &graph->tensors[file->first_tensor + i];
        entries[i] = (struct safetensors_entry){
            .name = tensor->name, .type = file->type, .rank = tensor->dims};
        memcpy(entries[i].shape, tensor->shape, sizeof tensor->shape);
    }
    enum status st =
        safetensors_layout_create(env, entries, file->tensor_count, notes, 1, &file->tensors);
    mem_free(env, entries);
    return st;
}

static enum status add_role(struct checkpoint_layout *layout, const struct unit_graph *graph,
                            enum checkpoint_role role, enum dtype type, int64_t most_bytes)
{
    int count = count_files(graph, type, most_bytes);
    for (int number = 1, t = 0; number <= count; number++) {
        struct checkpoint_file *file = &layout->files[layout->file_count++];
        *file = (struct checkpoint_file){.role = role, .type = type, .first_tensor = t};
        t = file_end(graph, t, type, most_bytes);
        file->tensor_count = t - file->first_tensor;
        name_file(file, number, count);
        TRY(lay_out_tensors(layout->env, graph, file));
        layout->bytes += safetensors_layout_file_bytes(file->tensors);
    }
    return STATUS_OK;
}

enum status checkpoint_layout_create(struct env *env, const struct unit_graph *graph,
                                     enum dtype type, int64_t most_bytes,
                                     struct checkpoint_layout *layout)
{
    int most_files =
        (CHECKPOINT_ROLES - CHECKPOINT_MODEL) * count_files(graph, DTYPE_F32, most_bytes);
    enum status st = STATUS_OK;
    *layout = (struct checkpoint_layout){.env = env, .bytes = SPARE_BYTES};
    TRY(mem_alloc_array(env, MEM_OTHER, "checkpoint files", (size_t)most_files,
                        sizeof *layout->files, &layout->files));
    for (int role = CHECKPOINT_MODEL; st == STATUS_OK && role < CHECKPOINT_ROLES; role++)
        if (role != CHECKPOINT_MASTER || type != DTYPE_F32) /* in fp32 the model is the masters */
            st = add_role(layout, graph, (enum checkpoint_role)role,
                          role == CHECKPOINT_MODEL ? type : DTYPE_F32, most_bytes);
    if (st != STATUS_OK)
        checkpoint_layout_free(layout);
    return st;
}

void checkpoint_layout_free(struct checkpoint_layout *layout)
{
    for (int i = 0; i < layout->file_count; i++)
        safetensors_layout_destroy(layout->files[i].tensors);
    if (layout->env)
        mem_free(layout->env, layout->files);
    *layout = (struct checkpoint_layout){0};
}

/* --- the index ------------------------------------------------------------------------------ */

int checkpoint_layout_model_files(const struct checkpoint_layout *layout)
{
    int count = 0;
    while (count < layout->file_count && layout->files[count].role == CHECKPOINT_MODEL)
        count++;
    return count;
}

void checkpoint_layout_index(const struct checkpoint_layout *layout, const struct unit_graph *graph,
                             struct text *text)
{
    int files = checkpoint_layout_model_files(layout);
    int64_t bytes = unit_graph_count(graph) * (int64_t)dtype_bytes(layout->files[0].type);
    if (files == 1)
        return;
    text_printf(text, "{\n  \"metadata\": {\"total_size\": %" PRId64 "},\n  \"weight_map\": {",
                bytes);
    for (int f = 0; f < files; f++) {
        const struct checkpoint_file *file = &layout->files[f];
        for (int i = 0; i < file->tensor_count; i++) {
            const char *name = graph->tensors[file->first_tensor + i].name;
            text_printf(text, "%s\n    ", f + i > 0 ? "," : "");
            text_json_string(text, name, strlen(name));
            text_printf(text, ": \"%s\"", file->name);
        }
    }
    text_add(text, "\n  }\n}\n");
}

/* --- parts ---------------------------------------------------------------------------------- */

/* Visit a range of a tensor, split at multiples of the chunk size from the tensor's start. */
static enum status visit_range(const struct checkpoint_layout *layout, int f, int i,
                               struct zero_range range, checkpoint_part_fn *visit, void *user)
{
    const struct checkpoint_file *file = &layout->files[f];
    size_t width = dtype_bytes(file->type);
    int64_t most = CHECKPOINT_CHUNK / (int64_t)width, end = range.first + range.count;
    for (int64_t first = range.first, next; first < end; first = next) {
        next = (first / most + 1) * most;
        next = next < end ? next : end;
        struct checkpoint_part part = {.file = f,
                                       .tensor = file->first_tensor + i,
                                       .first = first,
                                       .count = next - first,
                                       .begin = safetensors_layout_begin(file->tensors, i) +
                                                (uint64_t)first * width,
                                       .bytes = (size_t)(next - first) * width};
        TRY(visit(user, &part));
    }
    return STATUS_OK;
}

enum status checkpoint_layout_visit(const struct checkpoint_layout *layout, const struct zero *zero,
                                    int rank, checkpoint_part_fn *visit, void *user)
{
    for (int f = 0; f < layout->file_count; f++) {
        const struct checkpoint_file *file = &layout->files[f];
        for (int i = 0; i < file->tensor_count; i++) {
            struct zero_ranges part = zero_state_to_save(zero, file->first_tensor + i, rank);
            for (int r = 0; r < part.count; r++)
                TRY(visit_range(layout, f, i, part.at[r], visit, user));
        }
    }
    return STATUS_OK;
}

static enum status count_part(void *user, const struct checkpoint_part *part)
{
    (void)part;
    ++*(int64_t *)user;
    return STATUS_OK;
}

int64_t checkpoint_layout_parts(const struct checkpoint_layout *layout, const struct zero *zero,
                                int rank)
{
    int64_t count = 0;
    checkpoint_layout_visit(layout, zero, rank, count_part, &count);
    return count;
}
