/* checkpoint_list -- the chunks of a checkpoint and their hashes. */
#include "train/checkpoint/checkpoint_write.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "base/file.h"

enum { HASHES_AT_ONCE = 1024 };

/* Files of a checkpoint without tensors; each is optional. */
static const char *const plain[] = {"config.json",
                                    "tokenizer.json",
                                    "tokenizer_config.json",
                                    "generation_config.json",
                                    "special_tokens_map.json",
                                    "added_tokens.json",
                                    "chat_template.jinja",
                                    "model.safetensors.index.json",
                                    CHECKPOINT_OWN_FILE};
enum { PLAIN = sizeof plain / sizeof *plain };

struct checkpoint_listed { /* a chunk of a file */
    int file;
    struct checkpoint_chunk chunk;
};

/* --- chunks --------------------------------------------------------------------------------- */

static enum status list_part(void *user, const struct checkpoint_part *part)
{
    struct checkpoint_list *list = user;
    list->items[list->count++] =
        (struct checkpoint_listed){part->file, {.begin = part->begin, .bytes = part->bytes}};
    return STATUS_OK;
}

enum status checkpoint_list_create(struct env *env, const struct checkpoint_layout *layout,
                                   const struct zero *zero, int ranks, struct checkpoint_list *list)
{
    *list = (struct checkpoint_list){.env = env, .layout = layout, .ranks = ranks};
    TRY(mem_alloc_array(env, MEM_OTHER, "checkpoint chunks", (size_t)ranks + 1, sizeof *list->first,
                        &list->first));
    for (int r = 0; r < ranks; r++)
        list->first[r + 1] = list->first[r] + checkpoint_layout_parts(layout, zero, r);
    TRY(mem_alloc_array(env, MEM_OTHER, "checkpoint chunks", (size_t)list->first[ranks],
                        sizeof *list->items, &list->items));
    for (int r = 0; r < ranks; r++)
        TRY(checkpoint_layout_visit(layout, zero, r, list_part, list));
    return STATUS_OK;
}

void checkpoint_list_free(struct checkpoint_list *list)
{
    mem_free(list->env, list->items);
    mem_free(list->env, list->first);
    *list = (struct checkpoint_list){0};
}

/* --- hashes --------------------------------------------------------------------------------- */

static int compare_listed(const void *a, const void *b)
{
    const struct checkpoint_listed *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->chunk.begin < y->chunk.begin ? -1 : x->chunk.begin > y->chunk.begin;
}

size_t checkpoint_list_room(int ranks)
{
    return (size_t)ranks * HASHES_AT_ONCE * sizeof(uint64_t);
}

enum status checkpoint_list_gather(struct checkpoint_list *list, struct comm *comm,
                                   const uint64_t *hashes, int64_t hash_count, void *room)
{
    int64_t most = 0;
    uint64_t mine[HASHES_AT_ONCE];
    for (int r = 0; r < list->ranks; r++)
        if (list->first[r + 1] - list->first[r] > most)
            most = list->first[r + 1] - list->first[r];
    for (int64_t done = 0; done < most; done += HASHES_AT_ONCE) {
        for (int i = 0; i < HASHES_AT_ONCE; i++)
            mine[i] = done + i < hash_count ? hashes[done + i] : 0;
        if (comm)
            TRY(comm_exchange(comm, mine, sizeof mine, room));
        const uint64_t *all = comm ? room : mine; /* (ranks, HASHES_AT_ONCE) */
        for (int r = 0; r < list->ranks; r++, all += HASHES_AT_ONCE) {
            int64_t at = list->first[r] + done, left = list->first[r + 1] - at;
            for (int64_t i = 0; i < left && i < HASHES_AT_ONCE; i++)
                list->items[at + i].chunk.hash = all[i];
        }
    }
    qsort(list->items, (size_t)list->count, sizeof *list->items, compare_listed);
    return STATUS_OK;
}

/* --- entries -------------------------------------------------------------------------------- */

static int64_t chunks_of(uint64_t bytes)
{
    return (int64_t)((bytes + CHECKPOINT_CHUNK - 1) / CHECKPOINT_CHUNK);
}

/* Hash the first `bytes` of a file in full chunks. */
static void add_chunks(struct checkpoint_entry *entry, const void *data, uint64_t bytes)
{
    for (uint64_t begin = 0, part; begin < bytes; begin += part) {
        part = bytes - begin < CHECKPOINT_CHUNK ? bytes - begin : CHECKPOINT_CHUNK;
        entry->chunks[entry->chunk_count++] =
            (struct checkpoint_chunk){begin, part, XXH3_64bits((const char *)data + begin, part)};
    }
}

/* Add a tensor file: the chunks of its header, then those that the ranks wrote. */
static enum status add_tensors(const struct checkpoint_list *list, int f, int64_t *next,
                               struct checkpoint_state *state)
{
    const struct checkpoint_file *file = &list->layout->files[f];
    struct checkpoint_entry *entry = &state->entries[state->entry_count++];
    int64_t end = *next;
    size_t bytes;
    const void *header = safetensors_layout_header(file->tensors, &bytes);
    while (end < list->count && list->items[end].file == f)
        end++;
    *entry = (struct checkpoint_entry){.role = file->role,
                                       .bytes = safetensors_layout_file_bytes(file->tensors)};
    snprintf(entry->name, sizeof entry->name, "%s", file->name);
    TRY(mem_alloc_array(list->env, MEM_OTHER, "checkpoint chunks",
                        (size_t)(end - *next + chunks_of(bytes)), sizeof *entry->chunks,
                        &entry->chunks));
    add_chunks(entry, header, bytes);
    for (; *next < end; ++*next)
        entry->chunks[entry->chunk_count++] = list->items[*next].chunk;
    return STATUS_OK;
}

static enum status add_plain(const struct checkpoint_list *list, const char *folder,
                             const char *name, struct checkpoint_state *state)
{
    enum status st = STATUS_OK;
    struct file_map map;
    char *path;
    TRY(path_join(list->env, folder, name, &path));
    if (!file_exists(path))
        goto undo_path;
    TRY_OR(undo_path, file_map_open(list->env, path, &map));
    struct checkpoint_entry *entry = &state->entries[state->entry_count++];
    *entry = (struct checkpoint_entry){.role = CHECKPOINT_PLAIN, .bytes = map.bytes};
    snprintf(entry->name, sizeof entry->name, "%s", name);
    st = mem_alloc_array(list->env, MEM_OTHER, "checkpoint chunks", (size_t)chunks_of(map.bytes),
                         sizeof *entry->chunks, &entry->chunks);
    if (st == STATUS_OK)
        add_chunks(entry, map.data, map.bytes);
    if (st == STATUS_OK)
        st = file_map_check(list->env, path, map.data);
    file_map_close(&map);
undo_path:
    mem_free(list->env, path);
    return st;
}

enum status checkpoint_list_entries(const struct checkpoint_list *list, const char *folder,
                                    struct checkpoint_state *state)
{
    int files = list->layout->file_count;
    int64_t next = 0;
    TRY(mem_alloc_array(list->env, MEM_OTHER, "checkpoint files", (size_t)files + PLAIN,
                        sizeof *state->entries, &state->entries));
    for (int f = 0; f < files; f++)
        TRY(add_tensors(list, f, &next, state));
    for (int i = 0; i < PLAIN; i++)
        TRY(add_plain(list, folder, plain[i], state));
    return STATUS_OK;
}

bool checkpoint_list_is_plain(const char *name)
{
    for (int i = 0; i < PLAIN; i++)
        if (strcmp(name, plain[i]) == 0)
            return true;
    return false;
}
