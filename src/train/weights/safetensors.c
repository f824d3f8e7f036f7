/* safetensors.c -- parses and validates the header of a safetensors file.
 *
 *     u64 N | N bytes of JSON | the tensors' bytes
 *             {"name": {"dtype": .., "shape": [..], "data_offsets": [begin, end]}, ..}
 *
 * The checks are in the order of the reference reader: sizes, JSON, no gaps between tensors, shapes
 * against bytes, nothing after the last tensor. They guarantee that every tensor's range is inside
 * the map, so reading does not check it again. Tensors need not be aligned, so elements are copied
 * with memcpy and never accessed through a cast pointer.
 */
#include "train/weights/safetensors.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/json_doc.h"
#include "base/named.h"

#define HEADER_BYTES_MAX 100000000u
#define CHUNK_ELEMENTS   512
/* A tensor is one object with two lists and up to 15 values: this allows over 100,000 tensors. */
static const struct json_rules HEADER_RULES = {
    .values = 2000000, .lists = 400000, .flags = JSON_REJECT_DUPLICATES};

struct safetensors {
    struct env *env; /* borrowed */
    char *origin;
    struct file_map map; /* empty if opened from memory */
    const uint8_t *data;
    size_t bytes;
    struct json_doc header;      /* owns the names */
    struct safetensor *tensors;  /* sorted by offset */
    struct safetensor **by_name; /* pointers into tensors, sorted by name */
    int count;
};

static const char *const TYPE_WORDS[DTYPE_COUNT] = {
    [DTYPE_F32] = "F32", [DTYPE_BF16] = "BF16", [DTYPE_F16] = "F16", [DTYPE_F64] = "F64",
    [DTYPE_I32] = "I32", [DTYPE_I64] = "I64",   [DTYPE_U8] = "U8",
};

const char *safetensors_type_word(enum dtype type)
{
    return TYPE_WORDS[type];
}

/* --- the header ----------------------------------------------------------------------------- */

/* Checks 1 to 3: sizes, then JSON. *header_bytes is N. */
static enum status header_parse(struct safetensors *file, uint64_t *header_bytes)
{
    struct env *env = file->env;
    if (file->bytes < 8)
        return FAIL(env, FORMAT,
                    "'%s': header too small: the file has %zu bytes, 8 are needed; copy it again",
                    file->origin, file->bytes);
    const char *mistaken = mistaken_for(file->data, file->bytes < 512 ? file->bytes : 512);
    if (mistaken != NULL)
        return FAIL(env, FORMAT, "'%s' is %s", file->origin, mistaken);
    uint64_t size;
    memcpy(&size, file->data, 8);
    if (size > HEADER_BYTES_MAX)
        return FAIL(env, FORMAT, "'%s': header of %llu bytes is above the limit of %u",
                    file->origin, (unsigned long long)size, HEADER_BYTES_MAX);
    if (size > file->bytes - 8)
        return FAIL(env, FORMAT,
                    "'%s': header of %llu bytes does not fit in a file of %zu bytes (truncated?); "
                    "copy it again",
                    file->origin, (unsigned long long)size, file->bytes);
    if (size == 0 || file->data[8] != '{')
        return FAIL(env, FORMAT, "'%s': the header does not begin with '{'", file->origin);
    enum status st = json_doc_open(env, (const char *)file->data + 8, (size_t)size, &HEADER_RULES,
                                   &file->header);
    if (st == STATUS_FORMAT)
        return FAIL(env, FORMAT, "'%s': the header is %s: %s (at byte %d)", file->origin,
                    json_doc_fault(&file->header), file->header.error.text,
                    file->header.error.position);
    TRY(st);
    if (!json_is_object(file->header.root))
        return FAIL(env, FORMAT, "'%s': the header is not an object", file->origin);
    *header_bytes = size;
    return STATUS_OK;
}

static enum status metadata_check(const struct safetensors *file, const json_t *metadata)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return FAIL(file->env, FORMAT, "'%s': __metadata__ is not an object", file->origin);
    json_object_foreach((json_t *)metadata, key, value)
    {
        if (!json_is_string(value))
            return FAIL(file->env, FORMAT, "'%s': __metadata__ '%s' is not a string", file->origin,
                        key);
    }
    return STATUS_OK;
}

static enum status shape_parse(const struct safetensors *file, const json_t *shape,
                               struct safetensor *tensor)
{
    size_t rank = json_array_size(shape);
    if (!json_is_array(shape) || rank > SAFETENSORS_RANK_MAX)
        return FAIL(file->env, FORMAT,
                    "'%s': tensor '%s': shape must be a list of at most %d sizes", file->origin,
                    tensor->name, SAFETENSORS_RANK_MAX);
    tensor->rank = (int)rank;
    for (size_t i = 0; i < rank; i++) {
        const json_t *size = json_array_get(shape, i);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return FAIL(file->env, FORMAT,
                        "'%s': tensor '%s': shape[%zu] is not a count: it must be a whole number, "
                        "0 or more",
                        file->origin, tensor->name, i);
        tensor->shape[i] = json_integer_value(size);
    }
    return STATUS_OK;
}

/* Parse one entry. begin and bytes are not validated yet, and begin is relative to the end of the
 * header. */
static enum status tensor_parse(const struct safetensors *file, const char *name,
                                const json_t *entry, struct safetensor *tensor)
{
    const char *word = json_string_value(json_object_get(entry, "dtype"));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    int type = 0;
    tensor->name = name;
    if (!word)
        return FAIL(file->env, FORMAT, "'%s': tensor '%s' has no dtype", file->origin, name);
    while (type < DTYPE_COUNT && strcmp(word, TYPE_WORDS[type]) != 0)
        type++;
    if (type == DTYPE_COUNT)
        return FAIL(file->env, FORMAT,
                    "'%s': tensor '%s' has type %s, which is not supported; use a "
                    "model in F32, BF16 or F16",
                    file->origin, name, word);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
        return FAIL(file->env, FORMAT, "'%s': tensor '%s': data_offsets is not [begin, end]",
                    file->origin, name);
    tensor->type = (enum dtype)type;
    tensor->begin = (uint64_t)json_integer_value(begin);
    tensor->bytes = (size_t)(json_integer_value(end) - json_integer_value(begin));
    return shape_parse(file, json_object_get(entry, "shape"), tensor);
}

static int compare_offsets(const void *a, const void *b)
{
    const struct safetensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->bytes == y->bytes ? strcmp(x->name, y->name) : x->bytes < y->bytes ? -1 : 1;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(struct safetensor *const *)a)->name, (*(struct safetensor *const *)b)->name);
}

static enum status tensors_parse(struct safetensors *file)
{
    size_t room = json_object_size(file->header.root);
    const char *name;
    json_t *entry;
    if (room > INT_MAX)
        return FAIL(file->env, FORMAT, "'%s': too many tensors", file->origin);
    TRY(mem_alloc_array(file->env, MEM_OTHER, "safetensors header", room, sizeof *file->tensors,
                        &file->tensors));
    TRY(mem_alloc_array(file->env, MEM_OTHER, "safetensors header", room, sizeof *file->by_name,
                        &file->by_name));
    json_object_foreach(file->header.root, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            TRY(metadata_check(file, entry));
        else
            TRY(tensor_parse(file, name, entry, &file->tensors[file->count++]));
    }
    qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_offsets);
    for (int i = 0; i < file->count; i++)
        file->by_name[i] = &file->tensors[i];
    qsort(file->by_name, (size_t)file->count, sizeof *file->by_name, compare_names);
    return STATUS_OK;
}

/* Check 5: elements times width must equal the number of bytes. */
static enum status tensor_check_size(const struct safetensors *file, struct safetensor *tensor)
{
    int64_t count = 1, bytes;
    bool overflow = false;
    for (int i = 0; i < tensor->rank; i++)
        overflow |= __builtin_mul_overflow(count, tensor->shape[i], &count);
    overflow |= __builtin_mul_overflow(count, (int64_t)dtype_bytes(tensor->type), &bytes);
    if (overflow)
        return FAIL(file->env, FORMAT, "'%s': tensor '%s': the shape is too large", file->origin,
                    tensor->name);
    if ((uint64_t)bytes != tensor->bytes)
        return FAIL(file->env, FORMAT,
                    "'%s': tensor '%s' needs %lld bytes by its shape but has %zu", file->origin,
                    tensor->name, (long long)bytes, tensor->bytes);
    tensor->count = count;
    return STATUS_OK;
}

/* Checks 4 to 6. Afterwards begin is an offset from the start of the file. */
static enum status tensors_check(struct safetensors *file, uint64_t header_bytes)
{
    uint64_t next = 0, room = file->bytes - 8 - header_bytes;
    for (int i = 0; i < file->count; i++) {
        const struct safetensor *tensor = &file->tensors[i];
        if (tensor->begin != next)
            return FAIL(file->env, FORMAT,
                        "'%s': tensor '%s' begins at byte %llu, the one before ends at %llu",
                        file->origin, tensor->name, (unsigned long long)tensor->begin,
                        (unsigned long long)next);
        next += tensor->bytes;
    }
    for (int i = 0; i < file->count; i++)
        TRY(tensor_check_size(file, &file->tensors[i]));
    if (next != room)
        return FAIL(file->env, FORMAT,
                    "'%s': the tensors need %llu bytes but %llu follow the header%s; copy it again",
                    file->origin, (unsigned long long)next, (unsigned long long)room,
                    next > room ? " (truncated?)" : "");
    for (int i = 0; i < file->count; i++)
        file->tensors[i].begin += 8 + header_bytes;
    return STATUS_OK;
}

/* --- the open file -------------------------------------------------------------------------- */

static enum status file_create(struct env *env, const char *origin, struct safetensors **file)
{
    struct safetensors *f;
    TRY(mem_alloc(env, MEM_OTHER, "safetensors header", sizeof *f, &f));
    f->env = env;
    *file = f;
    return mem_strdup(env, origin, &f->origin);
}

static enum status file_parse(struct safetensors *file, const void *data, size_t bytes)
{
    uint64_t header_bytes = 0;
    file->data = data;
    file->bytes = bytes;
    TRY(header_parse(file, &header_bytes));
    TRY(tensors_parse(file));
    return tensors_check(file, header_bytes);
}

enum status safetensors_open_memory(struct env *env, const void *data, size_t bytes,
                                    const char *origin, struct safetensors **file)
{
    struct safetensors *f = NULL;
    enum status st;
    TRY_OR(undo_file, file_create(env, origin, &f));
    TRY_OR(undo_file, file_parse(f, data, bytes));
    *file = f;
    return STATUS_OK;
undo_file:
    safetensors_close(f);
    return st;
}

enum status safetensors_open_header(struct env *env, const void *data, size_t header_bytes,
                                    uint64_t bytes, const char *origin, struct safetensors **file)
{
    uint64_t size = 0;
    if (header_bytes >= 8)
        memcpy(&size, data, 8);
    if (header_bytes < 8 || size != header_bytes - 8 || bytes < header_bytes)
        return FAIL(env, FORMAT, "'%s': the header is not whole", origin);
    TRY(safetensors_open_memory(env, data, bytes, origin, file));
    (*file)->data = NULL;
    return STATUS_OK;
}

enum status safetensors_open(struct env *env, const char *path, struct safetensors **file)
{
    struct safetensors *f = NULL;
    enum status st;
    TRY_OR(undo_file, file_create(env, path, &f));
    TRY_OR(undo_file, file_map_open(env, path, &f->map));
    TRY_OR(undo_file, file_parse(f, f->map.data, f->map.bytes));
    TRY_OR(undo_file, file_map_check(env, path, f->map.data));
    *file = f;
    return STATUS_OK;
undo_file:
    safetensors_close(f);
    return st;
}

void safetensors_close(struct safetensors *file)
{
    if (!file)
        return;
    struct env *env = file->env;
    mem_free(env, file->by_name);
    mem_free(env, file->tensors);
    json_doc_close(&file->header);
    if (file->map.data)
        file_map_close(&file->map);
    mem_free(env, file->origin);
    mem_free(env, file);
}

int safetensors_count(const struct safetensors *file)
{
    return file->count;
}

const struct safetensor *safetensors_at(const struct safetensors *file, int i)
{
    CHECK(i >= 0 && i < file->count);
    return &file->tensors[i];
}

const struct safetensor *safetensors_find(const struct safetensors *file, const char *name)
{
    int low = 0, high = file->count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        int order = strcmp(name, file->by_name[middle]->name);
        if (order == 0)
            return file->by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

static bool is_floating(enum dtype type)
{
    return type == DTYPE_F32 || type == DTYPE_BF16 || type == DTYPE_F16 || type == DTYPE_F64;
}

enum status safetensors_read(const struct safetensors *file, const struct safetensor *tensor,
                             int64_t first, int64_t count, enum dtype type, void *out)
{
    CHECK(first >= 0 && count >= 0 && first <= tensor->count && count <= tensor->count - first);
    if (count == 0)
        return STATUS_OK;
    CHECK(file->data != NULL);
    size_t width = dtype_bytes(tensor->type);
    const uint8_t *from = file->data + tensor->begin + (size_t)first * width;
    if (type == tensor->type) {
        memcpy(out, from, (size_t)count * width);
        return file_map_check(file->env, file->origin, file->data);
    }
    if (!is_floating(type) || !is_floating(tensor->type))
        return FAIL(file->env, FORMAT, "'%s': tensor '%s' holds %s and cannot be read as %s",
                    file->origin, tensor->name, dtype_name(tensor->type), dtype_name(type));
    double chunk[CHUNK_ELEMENTS]; /* aligned for every type */
    uint8_t *to = out;
    for (int64_t done = 0, n; done < count; done += n) {
        n = count - done < CHUNK_ELEMENTS ? count - done : CHUNK_ELEMENTS;
        memcpy(chunk, from + (size_t)done * width, (size_t)n * width);
        dtype_convert(to + (size_t)done * dtype_bytes(type), type, chunk, tensor->type, n);
    }
    return file_map_check(file->env, file->origin, file->data);
}

/* --- the tensors of a graph, found by name -------------------------------------------------- */

static int compare_tensor_names(const void *a, const void *b)
{
    return strcmp(((const struct tensor_name *)a)->name, ((const struct tensor_name *)b)->name);
}

enum status tensor_names_create(struct env *env, const struct unit_graph *graph,
                                const char *(*also)(const char *name), struct tensor_names *names)
{
    size_t most = (also ? 2 : 1) * (size_t)graph->tensor_count;
    *names = (struct tensor_names){.env = env};
    TRY(mem_alloc_array(env, MEM_OTHER, "tensor names", most, sizeof *names->list, &names->list));
    for (int t = 0; t < graph->tensor_count; t++) {
        const char *name = graph->tensors[t].name;
        names->list[names->count++] = (struct tensor_name){name, t};
        if (also && strcmp(also(name), name) != 0)
            names->list[names->count++] = (struct tensor_name){also(name), t};
    }
    qsort(names->list, (size_t)names->count, sizeof *names->list, compare_tensor_names);
    return STATUS_OK;
}

int tensor_names_find(const struct tensor_names *names, const char *name)
{
    struct tensor_name wanted = {.name = name};
    const struct tensor_name *found =
        bsearch(&wanted, names->list, (size_t)names->count, sizeof wanted, compare_tensor_names);
    return found ? found->tensor : -1;
}

void tensor_names_free(struct tensor_names *names)
{
    mem_free(names->env, names->list);
}
