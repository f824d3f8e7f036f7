/* checkpoint_read -- opening, loading and verifying a checkpoint.
 *
 * Files are read, not mapped, so that a failing disk gives an error and not a signal. STATUS_FORMAT
 * is damage (wrong content or a missing file); STATUS_IO and STATUS_MEMORY say nothing about the
 * checkpoint.
 *
 * To read a range of a file, the chunks that cover it are read in full and compared with their
 * hashes before any byte is used. A load lists the chunks that it needs of a file, then reads a few
 * of them ahead (base/direct.h) while one is verified and stored. The header of a tensor file is
 * read in the same way. The buffers exist only during a call.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/direct.h"
#include "base/file.h"
#include "base/input.h"
#include "base/progress.h"
#include "train/checkpoint/checkpoint.h"

#define STATE_BYTES_MAX  ((size_t)1 << 30)
#define HEADER_BYTES_MAX ((uint64_t)100000000)

struct checkpoint {
    struct env *env; /* borrowed */
    char *folder;
    struct checkpoint_state state;
    struct ahead *ahead; /* reads chunks ahead; NULL between calls */
    bool direct;         /* bypass the page cache */
    int fd;              /* of `entry`; -1 = no file is open */
    const struct checkpoint_entry *entry;
    struct progress_task task;            /* bytes of the files, by all ranks together */
    const struct checkpoint_entry *shown; /* the file that the task has reached ... */
    uint64_t passed;                      /* ... and the bytes of those before it */
};

/* --- opening -------------------------------------------------------------------------------- */

/* A system error is not damage, unless the file is certainly missing: the folder can be listed and
 * does not contain it. */
static enum status judge(const struct checkpoint *c, const char *name, enum status st)
{
    return st == STATUS_IO && file_is_missing(c->env, c->folder, name) ? STATUS_FORMAT : st;
}

static enum status read_whole(const struct checkpoint *c, const char *name, size_t limit,
                              char **text, size_t *bytes)
{
    char *path;
    TRY(path_join(c->env, c->folder, name, &path));
    enum status st = judge(c, name, file_read(c->env, path, limit, text, bytes));
    mem_free(c->env, path);
    return st;
}

/* COMPLETE has the size and hash of state.json. */
static enum status read_state(struct checkpoint *c)
{
    char expected[CHECKPOINT_MARKER], *path, *json = NULL, *marker = NULL;
    size_t bytes, marker_bytes;
    enum status st;
    TRY(path_join(c->env, c->folder, "state.json", &path));
    TRY_OR(done, read_whole(c, "state.json", STATE_BYTES_MAX, &json, &bytes));
    TRY_OR(done, read_whole(c, "COMPLETE", 4096, &marker, &marker_bytes));
    checkpoint_marker(json, bytes, expected);
    if (marker_bytes != strlen(expected) || memcmp(marker, expected, marker_bytes) != 0)
        st = FAIL(c->env, FORMAT, "'%s': state.json does not match COMPLETE", c->folder);
    else
        st = checkpoint_state_parse(c->env, json, bytes, path, &c->state);
done:
    mem_free(c->env, marker);
    mem_free(c->env, json);
    mem_free(c->env, path);
    return st;
}

enum status checkpoint_open(struct env *env, const char *folder, struct checkpoint **checkpoint)
{
    struct checkpoint *c;
    enum status st;
    TRY(mem_alloc(env, MEM_OTHER, "checkpoint", sizeof *c, &c));
    c->env = env;
    c->fd = -1;
    TRY_OR(undo, mem_strdup(env, folder, &c->folder));
    TRY_OR(undo, read_state(c));
    *checkpoint = c;
    return STATUS_OK;
undo:
    checkpoint_close(c);
    return st;
}

static void close_file(struct checkpoint *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

/* Free the buffers at the end of a call. No read is in flight: read_chunks has taken every chunk
 * that it asked for. */
static enum status end_reading(struct checkpoint *c, enum status st)
{
    progress_end(c->env, &c->task);
    close_file(c);
    ahead_destroy(c->ahead);
    c->ahead = NULL;
    return st;
}

void checkpoint_close(struct checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    struct env *env = checkpoint->env;
    checkpoint_state_free(&checkpoint->state);
    mem_free(env, checkpoint->folder);
    mem_free(env, checkpoint);
}

const struct checkpoint_state *checkpoint_state(const struct checkpoint *checkpoint)
{
    return &checkpoint->state;
}

bool checkpoint_has(const struct checkpoint *checkpoint, enum checkpoint_role role)
{
    for (int i = 0; i < checkpoint->state.entry_count; i++)
        if (checkpoint->state.entries[i].role == role)
            return true;
    return false;
}

/* --- chunks --------------------------------------------------------------------------------- */

static enum status fail_chunk(const struct checkpoint *c, const struct checkpoint_chunk *chunk,
                              const char *reason)
{
    return FAIL(c->env, FORMAT, "'%s/%s': bytes %" PRIu64 " to %" PRIu64 ": %s", c->folder,
                c->entry->name, chunk->begin, chunk->begin + chunk->bytes, reason);
}

static enum status open_file(struct checkpoint *c, const struct checkpoint_entry *entry)
{
    uint64_t bytes;
    char *path;
    if (c->fd >= 0 && c->entry == entry)
        return STATUS_OK;
    close_file(c);
    c->entry = entry;
    TRY(path_join(c->env, c->folder, entry->name, &path));
    enum status st = judge(c, entry->name, file_open(c->env, path, &c->fd, &bytes));
    if (st == STATUS_OK && bytes != entry->bytes)
        st = FAIL(c->env, FORMAT, "'%s' has %" PRIu64 " bytes instead of %" PRIu64, path, bytes,
                  entry->bytes);
    mem_free(c->env, path);
    if (st != STATUS_OK)
        close_file(c);
    else if (c->direct)
        direct_past_cache(c->fd);
    return st;
}

/* `got` is the number of bytes read, or -1 with the reason in errno. */
static enum status check_chunk(const struct checkpoint *c, const struct checkpoint_chunk *chunk,
                               const void *data, ssize_t got)
{
    char reason[128];
    if (got < 0)
        return FAIL(c->env, IO, "'%s/%s': cannot read bytes %" PRIu64 " to %" PRIu64 ": %s",
                    c->folder, c->entry->name, chunk->begin, chunk->begin + chunk->bytes,
                    input_reason(errno, reason, sizeof reason));
    if ((uint64_t)got < chunk->bytes)
        return fail_chunk(c, chunk, "the file is too short");
    if (XXH3_64bits(data, chunk->bytes) != chunk->hash)
        return fail_chunk(c, chunk, "hash mismatch: the content has changed since it was written");
    return STATUS_OK;
}

/* A sequence of chunks to read. `chunk` returns the i-th one; `take` receives its content after the
 * hash was verified, and may use and modify `data` until it returns. */
struct chunk_reader {
    const struct checkpoint_chunk *(*chunk)(const void *user, int64_t i);
    enum status (*take)(void *user, int64_t i, char *data); /* NULL = only verify */
};

/* Begin a task that reads the files of these roles, a set of bits. */
static void begin_reading(struct checkpoint *c, const char *what, unsigned roles)
{
    uint64_t total = 0;
    for (int i = 0; i < c->state.entry_count; i++)
        if (roles >> c->state.entries[i].role & 1)
            total += c->state.entries[i].bytes;
    c->shown = NULL;
    c->passed = 0;
    progress_begin(&c->task, what, NULL, total);
}

/* Other ranks read the chunks before this one that this rank leaves out. */
static void show_chunk(struct checkpoint *c, const struct checkpoint_chunk *chunk)
{
    if (c->shown != c->entry) {
        c->passed += c->shown ? c->shown->bytes : 0;
        c->shown = c->entry;
    }
    progress_reach(c->env, &c->task, c->passed + chunk->begin + chunk->bytes);
}

static enum status read_chunks(struct checkpoint *c, const struct chunk_reader *reader, void *user,
                               int64_t count)
{
    enum status st = STATUS_OK;
    int64_t asked = 0;
    if (!c->ahead)
        TRY(ahead_create(c->env, CHECKPOINT_CHUNK, &c->ahead));
    for (int64_t i = 0; i < count && (st == STATUS_OK || i < asked); i++) {
        void *data;
        for (; st == STATUS_OK && asked < count && asked < i + AHEAD_RANGES; asked++) {
            const struct checkpoint_chunk *next = reader->chunk(user, asked);
            ahead_ask(c->ahead, c->fd, next->begin, next->bytes);
        }
        ssize_t got = ahead_take(c->ahead, &data);
        if (st == STATUS_OK)
            st = check_chunk(c, reader->chunk(user, i), data, got);
        if (st == STATUS_OK && reader->take)
            st = reader->take(user, i, data);
        if (st == STATUS_OK)
            show_chunk(c, reader->chunk(user, i));
    }
    return st;
}

/* Chunks first, first + step, ... of a file. */
struct dealt {
    const struct checkpoint_entry *entry;
    int64_t first, step;
    uint64_t bytes; /* for take_start: how much of the file `out` receives */
    char *out;
};

static const struct checkpoint_chunk *dealt_chunk(const void *user, int64_t i)
{
    const struct dealt *dealt = user;
    return &dealt->entry->chunks[dealt->first + i * dealt->step];
}

static enum status take_start(void *user, int64_t i, char *data)
{
    const struct dealt *start = user;
    const struct checkpoint_chunk *chunk = &start->entry->chunks[i];
    uint64_t left = start->bytes - chunk->begin;
    memcpy(start->out + chunk->begin, data, left < chunk->bytes ? left : chunk->bytes);
    return STATUS_OK;
}

/* Read the first `bytes` of a file into `out`. */
static enum status read_start(struct checkpoint *c, const struct checkpoint_entry *entry,
                              uint64_t bytes, void *out)
{
    static const struct chunk_reader reader = {dealt_chunk, take_start};
    struct dealt start = {entry, 0, 1, bytes, out};
    int64_t count = 0;
    CHECK(bytes <= entry->bytes);
    while (count < entry->chunk_count && entry->chunks[count].begin < bytes)
        count++;
    TRY(open_file(c, entry));
    return read_chunks(c, &reader, &start, count);
}

/* --- a tensor file -------------------------------------------------------------------------- */

static enum status open_tensors(struct checkpoint *c, const struct checkpoint_entry *entry,
                                struct safetensors **file)
{
    uint64_t size;
    char *path, *header;
    enum status st;
    TRY(path_join(c->env, c->folder, entry->name, &path));
    if (entry->bytes < 8) {
        st = FAIL(c->env, FORMAT, "'%s' has no header", path);
        goto undo_path;
    }
    TRY_OR(undo_path, read_start(c, entry, 8, &size));
    if (size > entry->bytes - 8 || size > HEADER_BYTES_MAX) {
        st = FAIL(c->env, FORMAT, "'%s': the header does not fit in the file", path);
        goto undo_path;
    }
    TRY_OR(undo_path, mem_alloc(c->env, MEM_OTHER, "safetensors header", size + 8, &header));
    st = read_start(c, entry, size + 8, header);
    if (st == STATUS_OK)
        st = safetensors_open_header(c->env, header, size + 8, entry->bytes, path, file);
    mem_free(c->env, header);
undo_path:
    mem_free(c->env, path);
    return st;
}

/* --- loading -------------------------------------------------------------------------------- */

struct want { /* a part of an array that is inside one chunk of the file */
    const struct checkpoint_chunk *chunk;
    uint64_t begin, bytes; /* in the file */
    int tensor;
    enum zero_state state;
    enum dtype type;
    int64_t first; /* its first element in the array */
};

/* The scales of codes that are decoded while they are loaded. */
struct decoding {
    uint8_t *scales; /* of `blocks`; NULL: nothing of this tensor is decoded */
    struct zero_range blocks;
    int skip; /* zero_code_skip */
};

enum { WIDENED = 1 << 14 }; /* elements at a time */

struct load {
    struct checkpoint *checkpoint;
    const struct unit_graph *graph;
    struct zero *zero;
    enum zero_state state, scales;
    enum checkpoint_role role;
    bool masters; /* the checkpoint has files of masters */
    struct tensor_names names;
    bool *seen;                /* (tensors) */
    struct decoding *decoding; /* (tensors) */
    float *widened;            /* (WIDENED) */

    struct want *wants; /* of the current file */
    int64_t want_count;
};

/* The index of the chunk that contains byte `at`. */
static int64_t find_chunk(const struct checkpoint_entry *entry, uint64_t at)
{
    int64_t low = 0, high = entry->chunk_count - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (entry->chunks[middle].begin <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Add the chunks of a range of an array of the file. */
static enum status want_range(struct load *load, const struct checkpoint_entry *entry, int tensor,
                              enum zero_state state, const struct safetensor *array,
                              struct zero_range range)
{
    uint64_t width = dtype_bytes(array->type);
    uint64_t begin = array->begin + (uint64_t)range.first * width;
    uint64_t end = begin + (uint64_t)range.count * width;
    CHECK(end <= entry->bytes);
    for (int64_t i = find_chunk(entry, begin); begin < end; i++) {
        const struct checkpoint_chunk *chunk = &entry->chunks[i];
        uint64_t chunk_end = chunk->begin + chunk->bytes, until = chunk_end < end ? chunk_end : end;
        if ((until - array->begin) % width != 0)
            return FAIL(load->checkpoint->env, FORMAT, "'%s/%s': a chunk ends inside an element",
                        load->checkpoint->folder, entry->name);
        load->wants[load->want_count++] =
            (struct want){.chunk = chunk,
                          .begin = begin,
                          .bytes = until - begin,
                          .tensor = tensor,
                          .state = state,
                          .type = array->type,
                          .first = (int64_t)((begin - array->begin) / width)};
        begin = until;
    }
    return STATUS_OK;
}

static const struct checkpoint_chunk *want_chunk(const void *user, int64_t i)
{
    return ((const struct load *)user)->wants[i].chunk;
}

/* load->widened = `count` codes, from `element` of the array on. */
static void decode(struct load *load, const struct want *want, int64_t element, int64_t count,
                   const void *codes)
{
    const struct decoding *d = &load->decoding[want->tensor];
    int64_t at = element + d->skip - d->blocks.first * OPS_BLOCK; /* in the blocks of d */
    zero_decode(want->state, codes, d->scales + at / OPS_BLOCK, at % OPS_BLOCK, count,
                load->checkpoint->env->threads, load->widened);
}

/* Write codes that the store has in another form, or 16-bit params, as fp32. */
static enum status write_widened(struct load *load, const struct want *want, const char *data)
{
    size_t width = dtype_bytes(want->type);
    int64_t count = (int64_t)(want->bytes / width);
    for (int64_t done = 0, n; done < count; done += n) {
        const char *from = data + (size_t)done * width;
        n = count - done < WIDENED ? count - done : WIDENED;
        if (want->type == DTYPE_U8)
            decode(load, want, want->first + done, n, from);
        else
            dtype_convert(load->widened, DTYPE_F32, from, want->type, n);
        TRY(zero_state_write(load->zero, want->state, want->tensor, want->first + done, n,
                             DTYPE_F32, load->widened));
    }
    return STATUS_OK;
}

static enum status take_want(void *user, int64_t i, char *data)
{
    struct load *load = user;
    const struct want *want = &load->wants[i];
    const struct decoding *d = &load->decoding[want->tensor];
    data += want->begin - want->chunk->begin;
    size_t off = (uintptr_t)data % dtype_bytes(want->type);
    if (off != 0) /* the buffer is aligned, so there is space before `data` */
        data = memmove(data - off, data, want->bytes);
    if (d->scales && want->state == load->scales) {
        memcpy(d->scales + (want->first - d->blocks.first), data, want->bytes);
        return STATUS_OK;
    }
    if (d->scales || dtype_bytes(want->type) == 2)
        return write_widened(load, want, data);
    return zero_state_write(load->zero, want->state, want->tensor, want->first,
                            (int64_t)(want->bytes / dtype_bytes(want->type)), want->type, data);
}

static bool fits(const struct unit_tensor *ours, const struct safetensor *theirs)
{
    bool same = ours->dims == theirs->rank;
    for (int d = 0; same && d < ours->dims; d++)
        same = ours->shape[d] == theirs->shape[d];
    return same;
}

static enum status fail_array(const struct load *load, const struct checkpoint_entry *entry,
                              const char *name, const char *problem)
{
    return FAIL(load->checkpoint->env, FORMAT, "'%s/%s': tensor '%s' %s", load->checkpoint->folder,
                entry->name, name, problem);
}

/* The scales of codes: in the same file, one byte for each block. */
static enum status find_scales(const struct load *load, const struct checkpoint_entry *entry,
                               const struct safetensors *file, int t,
                               const struct safetensor **scales)
{
    const struct unit_tensor *tensor = &load->graph->tensors[t];
    struct zero_range all = {0, unit_tensor_whole(tensor)};
    char name[UNIT_NAME + sizeof CHECKPOINT_SCALES];
    snprintf(name, sizeof name, "%s" CHECKPOINT_SCALES, tensor->name);
    *scales = safetensors_find(file, name);
    if (!*scales)
        return fail_array(load, entry, tensor->name, "has 8-bit codes without scales");
    if ((*scales)->type != DTYPE_U8 || (*scales)->rank != 1 ||
        (*scales)->count != zero_code_blocks(zero_code_skip(load->graph, t), all).count)
        return fail_array(load, entry, name, "has another type or shape than the codes need");
    return STATUS_OK;
}

/* Codes and scales: as they are, or decoded where the store has another form. */
static enum status want_codes(struct load *load, const struct checkpoint_entry *entry,
                              const struct safetensors *file, const struct safetensor *codes, int t)
{
    struct zero_range held = zero_state_held(load->zero, load->state, t);
    struct zero_range blocks = zero_state_held(load->zero, load->scales, t);
    const struct safetensor *scales;
    TRY(find_scales(load, entry, file, t, &scales));
    if (held.count > 0 && zero_state_array(load->zero, load->state, t).type != DTYPE_U8) {
        struct decoding *d = &load->decoding[t];
        d->skip = zero_code_skip(load->graph, t);
        d->blocks = blocks = zero_code_blocks(d->skip, held);
        TRY(mem_alloc(load->checkpoint->env, MEM_OTHER, "scales", (size_t)blocks.count,
                      &d->scales));
    }
    TRY(want_range(load, entry, t, load->scales, scales, blocks));
    return want_range(load, entry, t, load->state, codes, held);
}

/* Is this the name of the scales of codes in the same file? want_codes has taken them. */
static bool is_scales(const struct load *load, const struct safetensors *file, const char *name)
{
    size_t bytes = strlen(name), suffix = strlen(CHECKPOINT_SCALES);
    char base[UNIT_NAME];
    if (load->state == ZERO_MASTER || bytes <= suffix || bytes - suffix >= sizeof base ||
        strcmp(name + bytes - suffix, CHECKPOINT_SCALES) != 0)
        return false;
    snprintf(base, sizeof base, "%.*s", (int)(bytes - suffix), name);
    const struct safetensor *codes = safetensors_find(file, base);
    return codes && codes->type == DTYPE_U8 && tensor_names_find(&load->names, base) >= 0;
}

/* Do files of this role have the state of a tensor? If the checkpoint has masters, the model files
 * are read only for frozen tensors, which have no masters. In fp32 they contain the masters. */
static bool is_in_role(const struct load *load, int t)
{
    bool frozen = zero_tensor_is_frozen(load->zero, t);
    switch (load->role) {
    case CHECKPOINT_MODEL: return !load->masters || frozen;
    case CHECKPOINT_MASTER: return load->masters && !frozen;
    default: return zero_state_array(load->zero, load->state, t).count > 0;
    }
}

/* Codes are moments. The 16-bit value of a frozen tensor is its only one. */
static bool is_type(const struct load *load, int t, enum dtype type)
{
    switch (type) {
    case DTYPE_F32: return true;
    case DTYPE_U8: return load->state != ZERO_MASTER;
    case DTYPE_BF16:
    case DTYPE_F16: return load->role == CHECKPOINT_MODEL && zero_tensor_is_frozen(load->zero, t);
    default: return false;
    }
}

static enum status want_tensor(struct load *load, const struct checkpoint_entry *entry,
                               const struct safetensors *file, const struct safetensor *tensor)
{
    int t = tensor_names_find(&load->names, tensor->name);
    if (t < 0 && is_scales(load, file, tensor->name))
        return STATUS_OK;
    if (t < 0)
        return fail_array(load, entry, tensor->name, "is not in the model");
    if (load->seen[t])
        return fail_array(load, entry, tensor->name, "was in another file already");
    if (!is_in_role(load, t) && load->role == CHECKPOINT_MODEL)
        return STATUS_OK;
    if (!fits(&load->graph->tensors[t], tensor) || !is_type(load, t, tensor->type))
        return fail_array(load, entry, tensor->name, "has another type or shape than the model's");
    if (!is_in_role(load, t))
        return fail_array(load, entry, tensor->name,
                          load->role == CHECKPOINT_MASTER
                              ? "has a master, but the model never updates it"
                              : "has a moment that its optimizer has not");
    load->seen[t] = true;
    if (tensor->type == DTYPE_U8)
        return want_codes(load, entry, file, tensor, t);
    return want_range(load, entry, t, load->state, tensor,
                      zero_state_held(load->zero, load->state, t));
}

static enum status load_file(struct load *load, const struct checkpoint_entry *entry)
{
    static const struct chunk_reader reader = {want_chunk, take_want};
    struct checkpoint *c = load->checkpoint;
    struct safetensors *file;
    enum status st = open_tensors(c, entry, &file);
    if (st != STATUS_OK)
        return st;
    /* At most one want per chunk, plus one per array, which may end in the middle of a chunk. */
    TRY_OR(undo_file, mem_alloc_array(c->env, MEM_OTHER, "checkpoint chunks",
                                      (size_t)(entry->chunk_count + safetensors_count(file)),
                                      sizeof *load->wants, &load->wants));
    load->want_count = 0;
    for (int i = 0; st == STATUS_OK && i < safetensors_count(file); i++)
        st = want_tensor(load, entry, file, safetensors_at(file, i));
    if (st == STATUS_OK)
        st = read_chunks(c, &reader, load, load->want_count);
    mem_free(c->env, load->wants);
    for (int t = 0; t < load->graph->tensor_count; t++) {
        mem_free(c->env, load->decoding[t].scales);
        load->decoding[t] = (struct decoding){0};
    }
undo_file:
    safetensors_close(file);
    return st;
}

static enum status load_role(struct load *load)
{
    const struct checkpoint *c = load->checkpoint;
    bool any = load->role != CHECKPOINT_MODEL; /* those may have nothing that is needed */
    memset(load->seen, 0, (size_t)load->graph->tensor_count * sizeof *load->seen);
    for (int t = 0; t < load->graph->tensor_count && !any; t++)
        any = is_in_role(load, t);
    for (int i = 0; i < c->state.entry_count && any; i++)
        if (c->state.entries[i].role == load->role)
            TRY(load_file(load, &c->state.entries[i]));
    for (int t = 0; t < load->graph->tensor_count; t++)
        if (!load->seen[t] && is_in_role(load, t))
            return FAIL(c->env, FORMAT, "'%s': tensor '%s' is missing in the %s files", c->folder,
                        load->graph->tensors[t].name, checkpoint_role_word(load->role));
    return STATUS_OK;
}

enum status checkpoint_load(struct checkpoint *checkpoint, const struct unit_graph *graph,
                            bool direct, struct zero *zero)
{
    struct env *env = checkpoint->env;
    struct load load = {.checkpoint = checkpoint,
                        .graph = graph,
                        .zero = zero,
                        .masters = checkpoint_has(checkpoint, CHECKPOINT_MASTER)};
    /* If other ranks read the same bytes, the page cache serves all of them. */
    checkpoint->direct = direct && zero_held_once(zero);
    const struct {
        enum checkpoint_role role;
        enum zero_state state, scales;
    } steps[] = {
        {CHECKPOINT_MODEL, ZERO_MASTER, ZERO_MASTER},
        {CHECKPOINT_MASTER, ZERO_MASTER, ZERO_MASTER},
        {CHECKPOINT_MOMENTUM, ZERO_MOMENTUM, ZERO_MOMENTUM_SCALES},
        {CHECKPOINT_VARIANCE, ZERO_VARIANCE, ZERO_VARIANCE_SCALES},
    };
    size_t tensors = (size_t)graph->tensor_count;
    enum status st;
    TRY(mem_alloc_array(env, MEM_OTHER, "tensor list", tensors, sizeof *load.seen, &load.seen));
    TRY_OR(undo_seen, mem_alloc_array(env, MEM_OTHER, "scales", tensors, sizeof *load.decoding,
                                      &load.decoding));
    TRY_OR(undo_decoding,
           mem_alloc_array(env, MEM_OTHER, "widened", WIDENED, sizeof(float), &load.widened));
    TRY_OR(undo_widened, tensor_names_create(env, graph, NULL, &load.names));
    begin_reading(checkpoint, "loading the checkpoint",
                  1u << CHECKPOINT_MODEL | 1u << CHECKPOINT_MASTER | 1u << CHECKPOINT_MOMENTUM |
                      1u << CHECKPOINT_VARIANCE);
    for (size_t i = 0; st == STATUS_OK && i < sizeof steps / sizeof *steps; i++) {
        load.state = steps[i].state;
        load.scales = steps[i].scales;
        load.role = steps[i].role;
        st = load_role(&load);
    }
    tensor_names_free(&load.names);
undo_widened:
    mem_free(env, load.widened);
undo_decoding:
    mem_free(env, load.decoding);
undo_seen:
    mem_free(env, load.seen);
    return end_reading(checkpoint, st);
}

/* --- verifying ------------------------------------------------------------------------------ */

/* Verify chunks first, first + step, ... of a file. */
static enum status verify_file(struct checkpoint *c, const struct checkpoint_entry *entry,
                               int64_t first, int64_t step)
{
    static const struct chunk_reader reader = {dealt_chunk, NULL};
    struct dealt dealt = {.entry = entry, .first = first, .step = step};
    int64_t left = entry->chunk_count - first;
    TRY(open_file(c, entry));
    return left > 0 ? read_chunks(c, &reader, &dealt, (left + step - 1) / step) : STATUS_OK;
}

enum status checkpoint_verify(struct checkpoint *checkpoint, checkpoint_seen_fn *seen, void *user)
{
    enum status first = STATUS_OK;
    begin_reading(checkpoint, "verifying the checkpoint", ~0u);
    for (int i = 0; i < checkpoint->state.entry_count; i++) {
        const struct checkpoint_entry *entry = &checkpoint->state.entries[i];
        enum status st = verify_file(checkpoint, entry, 0, 1);
        if (seen)
            seen(user, entry, st);
        first = first != STATUS_OK ? first : st;
    }
    return end_reading(checkpoint, first);
}

enum status checkpoint_verify_part(struct checkpoint *checkpoint, enum checkpoint_role role,
                                   int64_t part, int64_t parts)
{
    enum status st = STATUS_OK;
    int64_t number = 0; /* of the file's first chunk, counted over all files of the role */
    begin_reading(checkpoint, "verifying the checkpoint", 1u << role);
    for (int i = 0; st == STATUS_OK && i < checkpoint->state.entry_count; i++) {
        const struct checkpoint_entry *entry = &checkpoint->state.entries[i];
        if (entry->role != role)
            continue;
        st = verify_file(checkpoint, entry, (part - number % parts + parts) % parts, parts);
        number += entry->chunk_count;
    }
    return end_reading(checkpoint, st);
}

enum status checkpoint_verify_role(struct checkpoint *checkpoint, enum checkpoint_role role)
{
    return checkpoint_verify_part(checkpoint, role, 0, 1);
}
