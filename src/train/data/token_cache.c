/* token_cache.c -- reads and writes a token cache.
 *
 * Tokens are written as they arrive. The mask follows them in the file, so it is kept in memory
 * until the end: one bit per token, only for sources with prompts.
 */
#include "train/data/token_cache.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/file.h"
#include "base/output.h"
#include "train/data/token_packer.h"

enum { HEADER_BYTES = 4096, VERSION = 1 };

struct header { /* as in the file; little-endian */
    char magic[8];
    uint32_t version, token_bytes;
    struct token_cache_key key;
    int64_t train, held_out;
    uint64_t mask_bytes;
    uint32_t masked[2]; /* does this part have masked tokens? */
    uint64_t tokens_hash, mask_hash;
    uint64_t hash; /* of all fields above */
};

static uint64_t header_hash(const struct header *header)
{
    return XXH3_64bits(header, offsetof(struct header, hash));
}

static enum status name_file(struct env *env, const char *folder, struct token_cache_key key,
                             char **path)
{
    char name[64];
    snprintf(name, sizeof name, TOKEN_CACHE_NAME, key.text, key.how);
    return path_join(env, folder, name, path);
}

/* --- reading -------------------------------------------------------------------------------- */

/* Do tokens and mask fill exactly `bytes`? No sum here can overflow. */
static bool has_size(const struct header *header, uint64_t bytes)
{
    uint64_t train = (uint64_t)header->train, held_out = (uint64_t)header->held_out;
    bool narrow = header->token_bytes == 2, wide = header->token_bytes == 4;
    if ((!narrow && !wide) || train > bytes || held_out > bytes || header->mask_bytes > bytes)
        return false;
    uint64_t tokens = train + held_out, left = bytes - header->mask_bytes;
    bool masks = header->mask_bytes == 0 || header->mask_bytes == (tokens + 7) / 8;
    return masks && tokens > 0 && left % header->token_bytes == 0 &&
           left / header->token_bytes == tokens;
}

/* Returns what is wrong with the header; NULL = nothing. */
static const char *read_header(const struct file_map *map, struct token_cache_key key,
                               struct header *header)
{
    if (map->bytes < HEADER_BYTES)
        return "it is too short";
    memcpy(header, map->data, sizeof *header);
    if (memcmp(header->magic, TOKEN_CACHE_MAGIC, sizeof header->magic) != 0)
        return "it has no header";
    if (header->version != VERSION || header->hash != header_hash(header))
        return "its header is damaged or of another version";
    if (header->key.text != key.text || header->key.how != key.how)
        return "it is of another text";
    return has_size(header, map->bytes - HEADER_BYTES) ? NULL : "its length is wrong";
}

static enum status take_map(struct env *env, const char *path, const struct file_map *map,
                            const struct header *header, struct token_cache **cache)
{
    struct token_cache *c;
    TRY(mem_alloc(env, MEM_LOADER, "token cache", sizeof *c, &c));
    *c = (struct token_cache){.env = env,
                              .tokens = map->data + HEADER_BYTES,
                              .token_bytes = (int)header->token_bytes,
                              .train = header->train,
                              .held_out = header->held_out,
                              .masked = {header->masked[0] != 0, header->masked[1] != 0},
                              .bytes = map->bytes,
                              .map = *map};
    enum status st = mem_strdup(env, path, &c->path);
    if (st != STATUS_OK) {
        mem_free(env, c);
        return st;
    }
    if (header->mask_bytes > 0)
        c->mask = map->data + map->bytes - header->mask_bytes;
    *cache = c;
    return STATUS_OK;
}

enum status token_cache_quiet(struct env *env, struct env *quiet)
{
    *quiet = *env;
    quiet->log = log_create(NULL, NULL, LOG_ERROR);
    return quiet->log ? STATUS_OK : FAIL(env, MEMORY, "out of memory for a log");
}

enum status token_cache_blame(struct env *env, const struct env *quiet, enum status st)
{
    return st == STATUS_MEMORY ? FAIL(env, MEMORY, "%s", log_first_error(quiet->log)) : st;
}

static enum status open_path(struct env *env, struct env *quiet, const char *path,
                             struct token_cache_key key, struct token_cache **cache)
{
    struct file_map map;
    struct header header;
    enum status st = token_cache_blame(env, quiet, file_map_open(quiet, path, &map));
    if (st == STATUS_MEMORY)
        return st;
    if (st != STATUS_OK) {
        log_warn(env, "rebuilding the token cache: %s", log_first_error(quiet->log));
        return STATUS_OK;
    }
    const char *wrong = read_header(&map, key, &header);
    if (!wrong) {
        const uint8_t *tokens = map.data + HEADER_BYTES;
        size_t bytes = map.bytes - HEADER_BYTES - header.mask_bytes;
        if (XXH3_64bits(tokens, bytes) != header.tokens_hash ||
            XXH3_64bits(tokens + bytes, header.mask_bytes) != header.mask_hash)
            wrong = "its content does not match its hash";
    }
    st = wrong ? STATUS_OK : take_map(env, path, &map, &header, cache);
    if (wrong)
        log_warn(env, "rebuilding the token cache '%s': %s", path, wrong);
    if (!*cache)
        file_map_close(&map);
    return st;
}

enum status token_cache_open(struct env *env, const char *folder, struct token_cache_key key,
                             struct token_cache **cache)
{
    struct env quiet;
    char *path;
    enum status st = STATUS_OK;
    *cache = NULL;
    TRY(name_file(env, folder, key, &path));
    if (file_exists(path)) {
        st = token_cache_quiet(env, &quiet);
        if (st == STATUS_OK)
            st = open_path(env, &quiet, path, key, cache);
        log_destroy(quiet.log);
    }
    mem_free(env, path);
    return st;
}

void token_cache_close(struct token_cache *cache)
{
    if (!cache)
        return;
    if (cache->private)
        mem_uncount(cache->env, MEM_HOST, MEM_LOADER, "tokens", cache->bytes);
    file_map_close(&cache->map);
    mem_free(cache->env, cache->path);
    mem_free(cache->env, cache);
}

bool token_cache_peek(struct env *env, const char *folder, struct token_cache_key key,
                      int64_t *tokens, size_t *bytes)
{
    struct env quiet;
    struct file_map map;
    struct header header;
    char *path;
    bool found = false;
    if (name_file(env, folder, key, &path) != STATUS_OK)
        return false;
    if (file_exists(path) && token_cache_quiet(env, &quiet) == STATUS_OK) {
        if (file_map_open(&quiet, path, &map) == STATUS_OK) {
            found = read_header(&map, key, &header) == NULL;
            *tokens = found ? header.train + header.held_out : 0;
            *bytes = map.bytes;
            file_map_close(&map);
        }
        log_destroy(quiet.log);
    }
    mem_free(env, path);
    return found;
}

/* --- writing -------------------------------------------------------------------------------- */

struct token_cache_writer {
    struct env *env;  /* borrowed */
    struct env quiet; /* for the file: a disk error is not an error of the run */
    struct part_file *file;
    char *folder; /* NULL = in memory */
    int fd;       /* of the file in memory, -1 = none */
    struct token_cache_key key;
    int64_t train; /* number of tokens to train on; -1 = still counting them */
    uint8_t *mask;
    size_t mask_room; /* bytes allocated */
    bool masked[2];   /* does this part have masked tokens? */
    XXH3_state_t *hash;
    char refusal[512];
    struct token_packer packer;
};

static enum status refuse(struct token_cache_writer *w, const char *why)
{
    if (!*w->refusal)
        snprintf(w->refusal, sizeof w->refusal, "%s", *why ? why : "for an unknown reason");
    return STATUS_IO;
}

/* If an operation on the file fails, record why: the caller continues without the cache. Out of
 * memory is returned as it is. */
static enum status judge_file(struct token_cache_writer *w, enum status st)
{
    st = token_cache_blame(w->env, &w->quiet, st);
    return st == STATUS_OK || st == STATUS_MEMORY ? st : refuse(w, log_first_error(w->quiet.log));
}

static enum status write_at(struct token_cache_writer *w, uint64_t at, const void *data,
                            size_t bytes)
{
    if (*w->refusal)
        return STATUS_IO;
    if (!w->folder)
        return output_write_at(w->env, w->fd, at, data, bytes)
                   ? STATUS_OK
                   : FAIL(w->env, MEMORY, "out of memory: cannot take %zu bytes for tokens: %s",
                          bytes, strerror(errno));
    return judge_file(w, part_file_write(w->file, at, data, bytes));
}

static enum status write_tokens(void *user, uint64_t at, const void *data, size_t bytes)
{
    struct token_cache_writer *w = user;
    XXH3_64bits_update(w->hash, data, bytes);
    return write_at(w, at, data, bytes);
}

static enum status open_file(struct token_cache_writer *w)
{
    struct env *env = w->env;
    char *path;
    if (!w->folder) {
        w->fd = memfd_create("tokens", MFD_CLOEXEC);
        return w->fd >= 0 ? STATUS_OK
                          : FAIL(env, MEMORY, "cannot make a file in memory for tokens: %s",
                                 strerror(errno));
    }
    TRY(name_file(env, w->folder, w->key, &path));
    enum status st = judge_file(w, dir_create(&w->quiet, w->folder));
    if (st == STATUS_OK)
        st = judge_file(w, part_file_create(&w->quiet, path, &w->file));
    mem_free(env, path);
    return st == STATUS_IO ? STATUS_OK : st; /* the next call fails */
}

enum status token_cache_writer_create(struct env *env, const char *folder,
                                      struct token_cache_key key, int64_t vocab,
                                      struct token_cache_writer **writer)
{
    struct token_cache_writer *w;
    enum status st;
    TRY(mem_alloc(env, MEM_LOADER, "token cache writer", sizeof *w, &w));
    w->env = env;
    w->fd = -1;
    w->key = key;
    w->train = -1;
    TRY_OR(undo, token_cache_quiet(env, &w->quiet));
    w->hash = XXH3_createState();
    if (!w->hash) {
        st = FAIL(env, MEMORY, "out of memory for a hash");
        goto undo;
    }
    XXH3_64bits_reset(w->hash);
    if (folder)
        TRY_OR(undo, mem_strdup(env, folder, &w->folder));
    token_packer_init(&w->packer, env, vocab, HEADER_BYTES, write_tokens, w);
    TRY_OR(undo, open_file(w));
    *writer = w;
    return STATUS_OK;
undo:
    token_cache_writer_destroy(w);
    return st;
}

void token_cache_writer_destroy(struct token_cache_writer *w)
{
    if (!w)
        return;
    struct env *env = w->env;
    part_file_destroy(w->file);
    if (w->fd >= 0)
        close(w->fd);
    XXH3_freeState(w->hash);
    mem_free(env, w->mask);
    mem_free(env, w->folder);
    log_destroy(w->quiet.log);
    mem_free(env, w);
}

/* Mask the next `count` tokens. The mask only grows as far as the last masked token. */
static enum status mark(struct token_cache_writer *w, int64_t count)
{
    int64_t first = w->packer.count;
    size_t needed = (size_t)(first + count + 7) / 8;
    if (needed > w->mask_room) {
        size_t room = needed > 2 * w->mask_room ? needed + 4096 : 2 * w->mask_room;
        TRY(mem_grow_array(w->env, MEM_LOADER, "label mask", room, 1, &w->mask));
        w->mask_room = room;
    }
    w->masked[w->train >= 0] = true;
    for (int64_t i = first; i < first + count; i++)
        w->mask[i / 8] |= (uint8_t)(1u << (i % 8));
    return STATUS_OK;
}

enum status token_cache_writer_add(struct token_cache_writer *w, const int32_t *tokens,
                                   int64_t count, bool masked)
{
    if (*w->refusal)
        return STATUS_IO;
    if (masked && count > 0)
        TRY(mark(w, count));
    return token_packer_add(&w->packer, tokens, count);
}

void token_cache_writer_hold_out(struct token_cache_writer *w)
{
    if (w->train < 0)
        w->train = w->packer.count;
}

int64_t token_cache_writer_count(const struct token_cache_writer *w)
{
    return w->packer.count - (w->train < 0 ? 0 : w->train);
}

int64_t token_cache_writer_total(const struct token_cache_writer *w)
{
    return w->packer.count;
}

const char *token_cache_writer_refusal(const struct token_cache_writer *w)
{
    return w->refusal;
}

static enum status write_rest(struct token_cache_writer *w)
{
    const struct token_packer *packer = &w->packer;
    struct header header = {.magic = TOKEN_CACHE_MAGIC,
                            .version = VERSION,
                            .token_bytes = (uint32_t)packer->token_bytes,
                            .key = w->key,
                            .masked = {w->masked[0], w->masked[1]},
                            .train = w->train < 0 ? packer->count : w->train};
    TRY(token_packer_flush(&w->packer));
    header.held_out = packer->count - header.train;
    if (w->mask)
        header.mask_bytes = (uint64_t)(packer->count + 7) / 8;
    if (header.mask_bytes > w->mask_room) { /* the last tokens are unmasked */
        TRY(mem_grow_array(w->env, MEM_LOADER, "label mask", header.mask_bytes, 1, &w->mask));
        w->mask_room = header.mask_bytes;
    }
    header.tokens_hash = XXH3_64bits_digest(w->hash);
    header.mask_hash = XXH3_64bits(w->mask, header.mask_bytes);
    header.hash = header_hash(&header);
    if (header.mask_bytes > 0)
        TRY(write_at(w, packer->at, w->mask, header.mask_bytes));
    uint8_t block[HEADER_BYTES] = {0};
    memcpy(block, &header, sizeof header);
    return write_at(w, 0, block, sizeof block);
}

/* The file in memory has a path only while the writer has it open. */
static enum status open_memory(struct token_cache_writer *w, struct token_cache **cache)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", w->fd);
    *cache = NULL;
    TRY(open_path(w->env, &w->quiet, path, w->key, cache));
    if (!*cache)
        return FAIL(w->env, IO, "cannot map the tokens that were made in memory");
    mem_free(w->env, (*cache)->path); /* the fd will be closed and reused */
    (*cache)->path = NULL;
    enum status st = mem_count(w->env, MEM_HOST, MEM_LOADER, "tokens", (*cache)->bytes);
    (*cache)->private = st == STATUS_OK;
    if (st != STATUS_OK) {
        token_cache_close(*cache);
        *cache = NULL;
    }
    return st;
}

enum status token_cache_writer_finish(struct token_cache_writer *w, struct token_cache **cache)
{
    CHECK(w->packer.count > 0);
    TRY(write_rest(w));
    if (!w->folder)
        return open_memory(w, cache);
    TRY(judge_file(w, part_file_commit(w->file)));
    TRY(token_cache_open(w->env, w->folder, w->key, cache));
    return *cache ? STATUS_OK : refuse(w, "the file that was written cannot be read back");
}
