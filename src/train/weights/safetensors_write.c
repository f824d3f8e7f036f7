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

struct place {                             /* one tensor in the file */
    const struct safetensors_entry *entry; /* borrowed; NULL once the layout is complete */
    int index;                             /* of the caller's entry */
    uint64_t begin;                        /* offset in the file, in bytes */
    int64_t count;
    enum dtype type;
};

struct safetensors_layout {
    struct env *env; /* borrowed */
    struct text header;
    struct place *places; /* in file order */
    int *position;        /* index of an entry -> index in places */
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

static int compare_places(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    int by_type = type_order(y->type) - type_order(x->type);
    return by_type ? by_type : strcmp(x->entry->name, y->entry->name);
}

static enum status place_init(struct env *env, const struct safetensors_entry *entry, int index,
                              struct place *place)
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
    *place = (struct place){.entry = entry, .index = index, .count = count, .type = entry->type};
    return STATUS_OK;
}

static size_t place_bytes(const struct place *place)
{
    return (size_t)place->count * dtype_bytes(place->type);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct place *)a)->entry->name, ((const struct place *)b)->entry->name);
}

static enum status places_sort(struct safetensors_layout *layout)
{
    struct place *places = layout->places;
    qsort(places, (size_t)layout->count, sizeof *places, compare_names);
    for (int i = 1; i < layout->count; i++)
        if (compare_names(&places[i - 1], &places[i]) == 0)
            return FAIL(layout->env, FORMAT, "two tensors are called '%s'", places[i].entry->name);
    qsort(places, (size_t)layout->count, sizeof *places, compare_places);
    return STATUS_OK;
}

/* --- the header text ------------------------------------------------------------------------ */

static void header_add_string(struct text *text, const char *string)
{
    text_json_string(text, string, strlen(string));
}

static void header_add_metadata(struct text *text, const struct safetensors_pair *pairs, int count)
{
    text_add(text, "{\"__metadata__\":{\"format\":\"pt\"");
    for (int i = 0; i < count; i++) {
        text_add(text, ",");
        header_add_string(text, pairs[i].key);
        text_add(text, ":");
        header_add_string(text, pairs[i].value);
    }
    text_add(text, "}");
}

static void header_add_tensor(struct text *text, const struct place *place, uint64_t begin)
{
    text_add(text, ",");
    header_add_string(text, place->entry->name);
    text_printf(text, ":{\"dtype\":\"%s\",\"shape\":[", safetensors_type_word(place->type));
    for (int i = 0; i < place->entry->rank; i++)
        text_printf(text, "%s%lld", i ? "," : "", (long long)place->entry->shape[i]);
    text_printf(text, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
                (unsigned long long)(begin + place_bytes(place)));
}

/* Write the header text and set the offset of every tensor. */
static enum status layout_fill(struct safetensors_layout *layout,
                               const struct safetensors_pair *metadata, int metadata_count)
{
    struct text *text = &layout->header;
    uint64_t next = 0;
    text_add_bytes(text, "\0\0\0\0\0\0\0", 8);
    header_add_metadata(text, metadata, metadata_count);
    for (int i = 0; i < layout->count; i++) {
        header_add_tensor(text, &layout->places[i], next);
        layout->places[i].begin = next;
        next += place_bytes(&layout->places[i]);
    }
    text_add(text, "}");
    while (text->status == STATUS_OK && text->bytes % 8 != 0)
        text_add(text, " ");
    TRY(text->status);
    uint64_t json_bytes = text->bytes - 8;
    memcpy(text->data, &json_bytes, 8);
    for (int i = 0; i < layout->count; i++) {
        layout->places[i].begin += text->bytes;
        layout->places[i].entry = NULL;
        layout->position[layout->places[i].index] = i;
    }
    layout->file_bytes = next + text->bytes;
    return STATUS_OK;
}

/* --- the layout ----------------------------------------------------------------------------- */

static enum status layout_build(struct safetensors_layout *layout,
                                const struct safetensors_entry *entries,
                                const struct safetensors_pair *metadata, int metadata_count)
{
    struct env *env = layout->env;
    size_t count = (size_t)layout->count;
    TRY(mem_alloc_array(env, MEM_OTHER, "safetensors layout", count, sizeof *layout->places,
                        &layout->places));
    TRY(mem_alloc_array(env, MEM_OTHER, "safetensors layout", count, sizeof *layout->position,
                        &layout->position));
    for (int i = 0; i < layout->count; i++)
        TRY(place_init(env, &entries[i], i, &layout->places[i]));
    TRY(places_sort(layout));
    return layout_fill(layout, metadata, metadata_count);
}

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
    TRY_OR(undo_layout, layout_build(l, entries, metadata, metadata_count));
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
    mem_free(env, layout->places);
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
    return layout->places[layout->position[i]].begin;
}

int64_t safetensors_layout_count(const struct safetensors_layout *layout, int i)
{
    CHECK(i >= 0 && i < layout->count);
    return layout->places[layout->position[i]].count;
}

/* --- writing -------------------------------------------------------------------------------- */

/* `file` NULL = only call `fill`. */
static enum status write_tensor(struct part_file *file, const struct place *place,
                                safetensors_fill_fn *fill, void *user, void *chunk)
{
    size_t width = dtype_bytes(place->type);
    int64_t step = (int64_t)(CHUNK_BYTES / width);
    for (int64_t first = 0; first < place->count; first += step) {
        int64_t n = place->count - first < step ? place->count - first : step;
        TRY(fill(user, place->index, first, n, chunk));
        if (file)
            TRY(part_file_write(file, place->begin + (uint64_t)first * width, chunk,
                                (size_t)n * width));
    }
    return STATUS_OK;
}

static enum status write_all(struct part_file *file, const struct safetensors_layout *layout,
                             safetensors_fill_fn *fill, void *user, void *chunk)
{
    TRY(part_file_reserve(file, layout->file_bytes));
    TRY(part_file_write(file, 0, layout->header.data, layout->header.bytes));
    for (int i = 0; i < layout->count; i++)
        TRY(write_tensor(file, &layout->places[i], fill, user, chunk));
    return part_file_commit(file);
}

enum status safetensors_write(struct env *env, const char *path,
                              const struct safetensors_layout *layout, safetensors_fill_fn *fill,
                              void *user)
{
    struct part_file *file;
    void *chunk;
    enum status st;
    TRY(mem_alloc(env, MEM_OTHER, "safetensors chunk", CHUNK_BYTES, &chunk));
    TRY_OR(undo_chunk, part_file_create(env, path, &file));
    st = write_all(file, layout, fill, user, chunk);
    part_file_destroy(file);
undo_chunk:
    mem_free(env, chunk);
    return st;
}

enum status safetensors_follow(struct env *env, const struct safetensors_layout *layout,
                               safetensors_fill_fn *fill, void *user)
{
    void *chunk;
    enum status st = STATUS_OK;
    TRY(mem_alloc(env, MEM_OTHER, "safetensors chunk", CHUNK_BYTES, &chunk));
    for (int i = 0; st == STATUS_OK && i < layout->count; i++)
        st = write_tensor(NULL, &layout->places[i], fill, user, chunk);
    mem_free(env, chunk);
    return st;
}
