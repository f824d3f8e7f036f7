/* safetensors_write.c -- the layout of a safetensors file, and a writer that streams into it.
 *
 * Tensors are in the order of the reference writer, widest type first and then by name, so that
 * each is aligned to its width. The header is padded with spaces to a multiple of 8 bytes. The
 * result has the same bytes as that of the reference writer.
 */
#include "train/weights/safetensors_write.h"
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/text.h"

#define CHUNK_BYTES (4u << 20)

struct location {                          /* of one tensor in the file */
    const struct safetensors_entry *entry; /* borrowed; NULL once the layout is complete */
    int index;                             /* of the caller's entry */
    uint64_t begin;                        /* offset in the file, in bytes */
    int64_t count;
    enum dtype type;
};

struct safetensors_layout {
    struct env *env; /* borrowed */
    struct text header;
    struct location *locations; /* in file order */
    int *position;              /* index of an entry -> index in locations */
    int count;
    uint64_t file_bytes;
};

/* The reference writer orders types by the values of its own enum, widest last. This maps our types
 * to that order. */
static int type_order(enum dtype type)
{
    static const int order[DTYPE_COUNT] = {
        [DTYPE_U8] = 0,  [DTYPE_F16] = 1, [DTYPE_BF16] = 2, [DTYPE_I32] = 3,
        [DTYPE_F32] = 4, [DTYPE_F64] = 5, [DTYPE_I64] = 6,
    };
    return order[type];
}

static int compare_locations(const void *a, const void *b)
{
    const struct location *x = a, *y = b;
    int by_type = type_order(y->type) - type_order(x->type);
    return by_type ? by_type : strcmp(x->entry->name, y->entry->name);
}

static enum status location_init(struct env *env, const struct safetensors_entry *entry, int index,
                                 struct location *location)
{
    int64_t count = 1, bytes;
    bool overflow = false;
    CHECK(entry->rank >= 0 && entry->rank <= SAFETENSORS_RANK_MAX);
    for (int i = 0; i < entry->rank; i++) {
        CHECK(entry->shape[i] >= 0);
        overflow |= __builtin_mul_overflow(count, entry->shape[i], &count);
    }
    overflow |= __builtin_mul_overflow(count, (int64_t)dtype_bytes(entry->type), &bytes);
    if (overflow)
        return FAIL(env, FORMAT, "tensor '%s' is too large for a file", entry->name);
    *location =
        (struct location){.entry = entry, .index = index, .count = count, .type = entry->type};
    return STATUS_OK;
}

static size_t location_bytes(const struct location *location)
{
    return (size_t)location->count * dtype_bytes(location->type);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct location *)a)->entry->name,
                  ((const struct location *)b)->entry->name);
}

/* --- the header text ------------------------------------------------------------------------ */

static void header_add_string(struct text *text, const char *string)
{
    text_json_string(text, string, strlen(string));
}

static void header_add_tensor(struct text *text, const struct location *location, uint64_t begin)
{
    text_add(text, ",");
    header_add_string(text, location->entry->name);
    text_printf(text, ":{\"dtype\":\"%s\",\"shape\":[", safetensors_type_word(location->type));
    for (int i = 0; i < location->entry->rank; i++)
        text_printf(text, "%s%lld", i ? "," : "", (long long)location->entry->shape[i]);
    text_printf(text, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
                (unsigned long long)(begin + location_bytes(location)));
}

/* Write the header text and set the offset of every tensor. */
static enum status layout_fill(struct safetensors_layout *layout,
                               const struct safetensors_pair *metadata, int metadata_count)
{
    struct text *text = &layout->header;
    uint64_t next = 0;
    text_add_bytes(text, "\0\0\0\0\0\0\0", 8);
    text_add(text, "{\"__metadata__\":{\"format\":\"pt\"");
    for (int i = 0; i < metadata_count; i++) {
        text_add(text, ",");
        header_add_string(text, metadata[i].key);
        text_add(text, ":");
        header_add_string(text, metadata[i].value);
    }
    text_add(text, "}");
    for (int i = 0; i < layout->count; i++) {
        header_add_tensor(text, &layout->locations[i], next);
        layout->locations[i].begin = next;
        next += location_bytes(&layout->locations[i]);
    }
    text_add(text, "}");
    while (text->status == STATUS_OK && text->bytes % 8 != 0)
        text_add(text, " ");
    TRY(text->status);
    uint64_t json_bytes = text->bytes - 8;
    memcpy(text->data, &json_bytes, 8);
    for (int i = 0; i < layout->count; i++) {
        layout->locations[i].begin += text->bytes;
        layout->locations[i].entry = NULL;
        layout->position[layout->locations[i].index] = i;
    }
    layout->file_bytes = next + text->bytes;
    return STATUS_OK;
}

/* --- the layout ----------------------------------------------------------------------------- */

enum status safetensors_layout_create(struct env *env, const struct safetensors_entry *entries,
                                      int count, const struct safetensors_pair *metadata,
                                      int metadata_count, struct safetensors_layout **layout)
{
    struct safetensors_layout *l;
    enum status st;
    TRY(mem_alloc(env, MEM_OTHER, "safetensors layout", sizeof *l, &l));
    l->env = env;
    l->count = count;
    text_init(&l->header, env);
    TRY_OR(undo_layout, mem_alloc_array(env, MEM_OTHER, "safetensors layout", (size_t)count,
                                        sizeof *l->locations, &l->locations));
    TRY_OR(undo_layout, mem_alloc_array(env, MEM_OTHER, "safetensors layout", (size_t)count,
                                        sizeof *l->position, &l->position));
    for (int i = 0; i < count; i++)
        TRY_OR(undo_layout, location_init(env, &entries[i], i, &l->locations[i]));
    qsort(l->locations, (size_t)count, sizeof *l->locations, compare_names);
    for (int i = 1; i < count; i++)
        if (compare_names(&l->locations[i - 1], &l->locations[i]) == 0) {
            st = FAIL(env, FORMAT, "two tensors are called '%s'", l->locations[i].entry->name);
            goto undo_layout;
        }
    qsort(l->locations, (size_t)count, sizeof *l->locations, compare_locations);
    TRY_OR(undo_layout, layout_fill(l, metadata, metadata_count));
    *layout = l;
    return STATUS_OK;
undo_layout:
    safetensors_layout_destroy(l);
    return st;
}

void safetensors_layout_destroy(struct safetensors_layout *layout)
{
    if (!layout)
        return;
    struct env *env = layout->env;
    text_free(&layout->header);
    mem_free(env, layout->position);
    mem_free(env, layout->locations);
    mem_free(env, layout);
}

const void *safetensors_layout_header(const struct safetensors_layout *layout, size_t *bytes)
{
    *bytes = layout->header.bytes;
    return layout->header.data;
}

uint64_t safetensors_layout_file_bytes(const struct safetensors_layout *layout)
{
    return layout->file_bytes;
}

uint64_t safetensors_layout_begin(const struct safetensors_layout *layout, int i)
{
    CHECK(i >= 0 && i < layout->count);
    return layout->locations[layout->position[i]].begin;
}

/* --- writing -------------------------------------------------------------------------------- */

static enum status write_tensor(struct part_file *file, const struct location *location,
                                safetensors_fill_fn *fill, void *user, void *chunk)
{
    size_t width = dtype_bytes(location->type);
    int64_t step = (int64_t)(CHUNK_BYTES / width);
    for (int64_t first = 0; first < location->count; first += step) {
        int64_t n = location->count - first < step ? location->count - first : step;
        TRY(fill(user, location->index, first, n, chunk));
        if (file)
            TRY(part_file_write(file, location->begin + (uint64_t)first * width, chunk,
                                (size_t)n * width));
    }
    return STATUS_OK;
}

enum status safetensors_write(struct env *env, const char *path,
                              const struct safetensors_layout *layout, safetensors_fill_fn *fill,
                              void *user)
{
    struct part_file *file = NULL;
    void *chunk;
    enum status st;
    TRY(mem_alloc(env, MEM_OTHER, "safetensors chunk", CHUNK_BYTES, &chunk));
    if (path) {
        TRY_OR(undo, part_file_create(env, path, &file));
        TRY_OR(undo, part_file_reserve(file, layout->file_bytes));
        TRY_OR(undo, part_file_write(file, 0, layout->header.data, layout->header.bytes));
    }
    for (int i = 0; i < layout->count; i++)
        TRY_OR(undo, write_tensor(file, &layout->locations[i], fill, user, chunk));
    st = file ? part_file_commit(file) : STATUS_OK;
undo:
    part_file_destroy(file);
    mem_free(env, chunk);
    return st;
}
