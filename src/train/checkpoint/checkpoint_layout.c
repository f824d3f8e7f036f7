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

/* What a role has of the model. */
struct role {
    const struct unit_graph *graph;
    const struct zero *zero; /* NULL: only the model */
    enum checkpoint_role role;
    enum dtype type; /* of the parameters */
    int64_t most_bytes;
};

enum { MOST_ITEMS = 2 }; /* of a tensor in a role */

static void add_item(const struct role *r, int tensor, enum zero_state state, const char *suffix,
                     struct checkpoint_item *items, int *count)
{
    struct zero_array array = {r->type, unit_tensor_whole(&r->graph->tensors[tensor])};
    if (r->role != CHECKPOINT_MODEL)
        array = zero_state_array(r->zero, state, tensor);
    if (array.count == 0)
        return;
    struct checkpoint_item *item = &items[(*count)++];
    *item = (struct checkpoint_item){
        .tensor = tensor, .state = state, .type = array.type, .count = array.count};
    snprintf(item->name, sizeof item->name, "%s%s", r->graph->tensors[tensor].name, suffix);
}

/* What a role has of a tensor; returns the number of items. */
static int items_of(const struct role *r, int tensor, struct checkpoint_item items[MOST_ITEMS])
{
    int count = 0;
    if (r->role == CHECKPOINT_MOMENTUM) {
        add_item(r, tensor, ZERO_MOMENTUM, "", items, &count);
        add_item(r, tensor, ZERO_MOMENTUM_SCALES, CHECKPOINT_SCALES, items, &count);
    } else if (r->role == CHECKPOINT_VARIANCE) {
        add_item(r, tensor, ZERO_VARIANCE, "", items, &count);
        add_item(r, tensor, ZERO_VARIANCE_SCALES, CHECKPOINT_SCALES, items, &count);
    } else if (r->role == CHECKPOINT_MODEL || !zero_tensor_is_frozen(r->zero, tensor)) {
        add_item(r, tensor, ZERO_MASTER, "", items, &count);
    }
    return count;
}

/* The bytes of a param, and the number of its items, which is added to *count. */
static int64_t param_bytes(const struct role *r, int param, int *count)
{
    const struct unit_param *p = &r->graph->params[param];
    struct checkpoint_item items[MOST_ITEMS];
    int64_t bytes = 0;
    for (int t = p->first_tensor; t < p->first_tensor + p->tensor_count; t++) {
        int found = items_of(r, t, items);
        for (int i = 0; i < found; i++)
            bytes += items[i].count * (int64_t)dtype_bytes(items[i].type);
        *count += found;
    }
    return bytes;
}

/* The first param after the file that begins with param q, and the number of items in the file. A
 * file contains as many complete pieces of the model as fit, and at least one that is not empty. */
static int file_end(const struct role *r, int q, int *items)
{
    const struct unit_graph *graph = r->graph;
    int64_t bytes = 0;
    *items = 0;
    for (int next; q < graph->param_count; q = next) {
        int64_t more = 0;
        int found = 0;
        for (next = q; next < graph->param_count; next++) {
            if (graph->params[next].piece != graph->params[q].piece)
                break;
            more += param_bytes(r, next, &found);
        }
        if (bytes > 0 && more > 0 && bytes + more > r->most_bytes)
            return q;
        bytes += more;
        *items += found;
    }
    return graph->param_count;
}

/* Without any item there is no file. */
static int count_files(const struct role *r)
{
    int count = 0, items;
    for (int q = 0; q<r->graph->param_count; count += items> 0)
        q = file_end(r, q, &items);
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
    TRY(mem_alloc_array(env, MEM_OTHER, "tensor list", (size_t)file->item_count, sizeof *entries,
                        &entries));
    for (int i = 0; i < file->item_count; i++) {
        const struct checkpoint_item *item = &file->items[i];
        const struct unit_tensor *tensor = &graph->tensors[item->tensor];
        bool blocks = item->state == ZERO_MOMENTUM_SCALES || item->state == ZERO_VARIANCE_SCALES;
        entries[i] = (struct safetensors_entry){
            .name = item->name, .type = item->type, .rank = blocks ? 1 : tensor->dims};
        memcpy(entries[i].shape, tensor->shape, sizeof tensor->shape);
        if (blocks)
            entries[i].shape[0] = item->count;
    }
    enum status st =
        safetensors_layout_create(env, entries, file->item_count, notes, 1, &file->tensors);
    mem_free(env, entries);
    return st;
}

static enum status fill_file(struct env *env, const struct role *r, int q, int end,
                             struct checkpoint_file *file)
{
    const struct unit_graph *graph = r->graph;
    int count = 0;
    TRY(mem_alloc_array(env, MEM_OTHER, "tensor list", (size_t)file->item_count,
                        sizeof *file->items, &file->items));
    for (; q < end; q++)
        for (int t = 0; t < graph->params[q].tensor_count; t++) {
            struct checkpoint_item found[MOST_ITEMS];
            int n = items_of(r, graph->params[q].first_tensor + t, found);
            memcpy(file->items + count, found, (size_t)n * sizeof *found);
            count += n;
        }
    CHECK_EQ(count, file->item_count);
    return lay_out_tensors(env, graph, file);
}

static enum status add_role(struct checkpoint_layout *layout, const struct role *r)
{
    int count = count_files(r);
    for (int number = 1, q = 0; number <= count; number++) {
        struct checkpoint_file *file = &layout->files[layout->file_count++];
        int first = q;
        *file = (struct checkpoint_file){.role = r->role};
        q = file_end(r, q, &file->item_count);
        name_file(file, number, count);
        TRY(fill_file(layout->env, r, first, q, file));
        layout->bytes += safetensors_layout_file_bytes(file->tensors);
    }
    return STATUS_OK;
}

/* In fp32 the model is the masters. */
static bool has_role(const struct role *r)
{
    return r->role == CHECKPOINT_MODEL ||
           (r->zero && (r->role != CHECKPOINT_MASTER || r->type != DTYPE_F32));
}

enum status checkpoint_layout_create(struct env *env, const struct unit_graph *graph,
                                     enum dtype type, int64_t most_bytes, const struct zero *zero,
                                     struct checkpoint_layout *layout)
{
    struct role role = {.graph = graph, .zero = zero, .type = type, .most_bytes = most_bytes};
    int files = 0;
    enum status st = STATUS_OK;
    *layout = (struct checkpoint_layout){.env = env, .bytes = SPARE_BYTES};
    for (role.role = CHECKPOINT_MODEL; role.role < CHECKPOINT_ROLES; role.role++)
        files += has_role(&role) ? count_files(&role) : 0;
    TRY(mem_alloc_array(env, MEM_OTHER, "checkpoint files", (size_t)files, sizeof *layout->files,
                        &layout->files));
    for (role.role = CHECKPOINT_MODEL; st == STATUS_OK && role.role < CHECKPOINT_ROLES; role.role++)
        st = has_role(&role) ? add_role(layout, &role) : STATUS_OK;
    if (st != STATUS_OK)
        checkpoint_layout_free(layout);
    return st;
}

void checkpoint_layout_free(struct checkpoint_layout *layout)
{
    for (int i = 0; i < layout->file_count; i++) {
        safetensors_layout_destroy(layout->files[i].tensors);
        mem_free(layout->env, layout->files[i].items);
    }
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

void checkpoint_layout_index(const struct checkpoint_layout *layout, struct text *text)
{
    int files = checkpoint_layout_model_files(layout);
    int64_t bytes = 0;
    if (files == 1)
        return;
    for (int f = 0; f < files; f++)
        for (int i = 0; i < layout->files[f].item_count; i++)
            bytes += layout->files[f].items[i].count *
                     (int64_t)dtype_bytes(layout->files[f].items[i].type);
    text_printf(text, "{\n  \"metadata\": {\"total_size\": %" PRId64 "},\n  \"weight_map\": {",
                bytes);
    for (int f = 0; f < files; f++) {
        const struct checkpoint_file *file = &layout->files[f];
        for (int i = 0; i < file->item_count; i++) {
            const char *name = file->items[i].name;
            text_printf(text, "%s\n    ", f + i > 0 ? "," : "");
            text_json_string(text, name, strlen(name));
            text_printf(text, ": \"%s\"", file->name);
        }
    }
    text_add(text, "\n  }\n}\n");
}

/* --- parts ---------------------------------------------------------------------------------- */

/* Visit a range of an array, split at multiples of the chunk size from its start. */
static enum status visit_range(const struct checkpoint_layout *layout, int f, int i,
                               struct zero_range range, checkpoint_part_fn *visit, void *user)
{
    const struct checkpoint_file *file = &layout->files[f];
    size_t width = dtype_bytes(file->items[i].type);
    int64_t most = CHECKPOINT_CHUNK / (int64_t)width, end = range.first + range.count;
    for (int64_t first = range.first, next; first < end; first = next) {
        next = (first / most + 1) * most;
        next = next < end ? next : end;
        struct checkpoint_part part = {.file = f,
                                       .item = i,
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
        for (int i = 0; i < file->item_count; i++) {
            const struct checkpoint_item *item = &file->items[i];
            struct zero_ranges part = zero_state_to_save(zero, item->state, item->tensor, rank);
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
