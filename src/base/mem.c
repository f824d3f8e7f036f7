/* mem -- the memory account, and blocks with a header that points to their line in it.
 *
 *     | header: bytes, mapped bytes, line, guard | the caller's block ...
 *     ^ 64-byte boundary                         ^ 64-byte boundary
 *
 * Every block carries its size and its line (location, category, name) in the 64 bytes before it,
 * so mem_free needs only the pointer. Lines stay in a hash table until mem_destroy, so a step that
 * frees and allocates the same names allocates no lines. Small blocks come from the C library; from
 * LARGE_BYTES up they are mapped, which gives zeroed pages at no cost and allows huge pages. Under
 * AddressSanitizer all blocks come from the C library, where overruns are detected.
 *
 * Invariant: the totals of a location == sum over its categories == sum over its lines; those of
 * `whole` == host + GPU; and a line never goes below zero (CHECKed).
 */
#include "base/mem.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/env.h"
#include "base/printable.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EVERY_BLOCK_SMALL 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(EVERY_BLOCK_SMALL)
static const size_t LARGE_BYTES = (size_t)1 << 40;
#else
static const size_t LARGE_BYTES = (size_t)1 << 20;
#endif

enum { ALIGN = 64, LINE_BUCKETS = 8192 };
static const uint64_t GUARD = 0x5eed0fb10c4ull;

struct line {
    struct line *next; /* in its bucket */
    enum mem_location location;
    enum mem_category category;
    size_t bytes;
    char name[];
};

struct header {
    size_t bytes;        /* the caller's */
    size_t mapped_bytes; /* of the whole mapping; 0 = from the C library */
    union {
        struct line *line;        /* borrowed */
        struct header *next_kept; /* after the block was freed */
    };
    uint64_t guard;
};
_Static_assert(sizeof(struct header) <= ALIGN, "the header fits before the block");

struct tally {
    size_t now, peak;
};

struct account {
    struct tally categories[MEM_CATEGORY_COUNT], total;
    size_t limit;          /* of the total; 0 = none */
    const char *limit_key; /* borrowed: what sets it */
};

struct mem {
    pthread_mutex_t lock;
    struct line *buckets[LINE_BUCKETS];
    struct account whole, locations[MEM_LOCATION_COUNT];
    int64_t allocation_count;
    int64_t until_failure; /* 1 = the next fails, 0 = off */
    _Atomic bool keeps_freed;
};

/* --- the account ---------------------------------------------------------------------------- */

const char *mem_category_word(enum mem_category category)
{
    static const char *const words[] = {
#define X(name, word) [MEM_##name] = word,
        MEM_CATEGORIES(X)
#undef X
    };
    CHECK_LT((unsigned)category, MEM_CATEGORY_COUNT);
    return words[category];
}

const char *mem_location_word(enum mem_location location)
{
    static const char *const words[] = {
        [MEM_HOST] = "host", [MEM_GPU] = "gpu", [MEM_DISK] = "disk"};
    CHECK_LT((unsigned)location, MEM_LOCATION_COUNT);
    return words[location];
}

struct mem *mem_create(void)
{
    struct mem *mem = calloc(1, sizeof *mem);
    if (mem)
        pthread_mutex_init(&mem->lock, NULL);
    return mem;
}

static void print_leak(void *user, const struct mem_line *line)
{
    (void)user;
    fprintf(stderr, "still held: %zu bytes of %s '%s'\n", line->bytes,
            mem_category_word(line->category), line->name);
}

void mem_destroy(struct mem *mem)
{
    if (!mem)
        return;
    mem_visit(mem, print_leak, NULL);
    for (int l = 0; l < MEM_LOCATION_COUNT; l++)
        CHECK_EQ(mem->locations[l].total.now, 0);
    for (int i = 0; i < LINE_BUCKETS; i++) {
        for (struct line *line = mem->buckets[i], *next; line; line = next) {
            next = line->next;
            free(line);
        }
    }
    pthread_mutex_destroy(&mem->lock);
    free(mem);
}

static unsigned bucket_of(enum mem_location location, enum mem_category category, const char *name)
{
    uint32_t hash = 2166136261u ^ (uint32_t)category ^ (uint32_t)location << 8;
    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 16777619u;
    return (hash ^ hash >> 16) % LINE_BUCKETS;
}

/* The line of (location, category, name), created when it is new and `make` is set; NULL = not
 * found, or out of memory. */
static struct line *find_line(struct mem *mem, enum mem_location location,
                              enum mem_category category, const char *name, bool make)
{
    struct line **bucket = &mem->buckets[bucket_of(location, category, name)];
    for (struct line *line = *bucket; line; line = line->next)
        if (line->location == location && line->category == category &&
            strcmp(line->name, name) == 0)
            return line;
    size_t name_bytes = strlen(name) + 1;
    struct line *line = make ? malloc(sizeof *line + name_bytes) : NULL;
    if (!line)
        return NULL;
    *line = (struct line){.next = *bucket, .location = location, .category = category};
    memcpy(line->name, name, name_bytes);
    *bucket = line;
    return line;
}

static void tally_move(struct tally *tally, size_t more, size_t less)
{
    tally->now += more - less;
    if (tally->now > tally->peak)
        tally->peak = tally->now;
}

static void account_move(struct account *account, enum mem_category category, size_t more,
                         size_t less)
{
    tally_move(&account->categories[category], more, less);
    tally_move(&account->total, more, less);
}

/* Subtract `less` bytes from the line and add `more` in one step, so that a resize raises the
 * peak only by its growth. */
static void line_move(struct mem *mem, struct line *line, size_t more, size_t less)
{
    CHECK(less <= line->bytes);
    line->bytes += more - less;
    if (line->location != MEM_DISK)
        account_move(&mem->whole, line->category, more, less);
    account_move(&mem->locations[line->location], line->category, more, less);
}

/* Called once per allocation; false = this one was chosen to fail. */
static bool admit(struct mem *mem)
{
    mem->allocation_count++;
    return mem->until_failure == 0 || --mem->until_failure > 0;
}

/* Whether the location's limit allows `more` bytes in place of `less`. */
static bool is_within(const struct account *account, size_t more, size_t less)
{
    size_t kept = account->total.now - less;
    return account->limit == 0 || more <= less ||
           (kept <= account->limit && more <= account->limit - kept);
}

/* The line of an allocation; NULL = refused: it was chosen to fail, or is above the limit. */
static struct line *admit_line(struct mem *mem, enum mem_location location,
                               enum mem_category category, const char *name, size_t bytes)
{
    bool admitted = admit(mem) && is_within(&mem->locations[location], bytes, 0);
    return admitted ? find_line(mem, location, category, name, true) : NULL;
}

/* An allocation of `more` bytes in place of `less` was refused. */
static enum status fail_memory(struct env *env, enum mem_location location,
                               enum mem_category category, const char *name, size_t more,
                               size_t less)
{
    static const char *const words[] = {
        [MEM_HOST] = "host memory", [MEM_GPU] = "GPU memory", [MEM_DISK] = "disk space"};
    char asked[32], held[32], limit[32];
    pthread_mutex_lock(&env->mem->lock);
    struct account account = env->mem->locations[location];
    pthread_mutex_unlock(&env->mem->lock);
    text_human_bytes(asked, (double)more);
    if (is_within(&account, more, less))
        return FAIL(env, MEMORY, "out of memory: cannot take %s for %s '%s'", asked,
                    mem_category_word(category), name);
    return FAIL(env, MEMORY,
                "%s '%s' needs %s, and %s of %s is held: more than %s allows, %s; "
                "raise it, or use a smaller micro-batch, recomputation, offload or more ranks",
                mem_category_word(category), name, asked,
                text_human_bytes(held, (double)account.total.now), words[location],
                account.limit_key, text_human_bytes(limit, (double)account.limit));
}

/* --- blocks from the system ----------------------------------------------------------------- */

static void *block_of(struct header *header)
{
    return (char *)header + ALIGN;
}

static struct header *header_of(void *block)
{
    struct header *header = (struct header *)((char *)block - ALIGN);
    CHECK(header->guard == GUARD);
    return header;
}

/* A zeroed block with its header, not yet on a line; NULL = out of memory. */
static struct header *system_take(size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        return NULL;
    size_t whole = (bytes + 2 * ALIGN - 1) / ALIGN * ALIGN, mapped = 0;
    struct header *header;
    if (bytes >= LARGE_BYTES) {
        header = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (header == MAP_FAILED)
            return NULL;
        madvise(header, whole, MADV_HUGEPAGE);
        mapped = whole;
    } else {
        header = aligned_alloc(ALIGN, whole);
        if (!header)
            return NULL;
        memset(header, 0, whole);
    }
    *header = (struct header){.bytes = bytes, .mapped_bytes = mapped, .guard = GUARD};
    return header;
}

/* Blocks that were freed but must stay allocated; reachable, so not reported as leaks. */
static _Atomic(struct header *) kept;

static void give_back(struct header *header)
{
    size_t mapped = header->mapped_bytes;
    header->guard = 0;
    if (mapped)
        munmap(header, mapped);
    else
        free(header);
}

static void give_or_keep(const struct mem *mem, struct header *header)
{
    if (mem_keeps_freed(mem)) {
        header->next_kept = atomic_load(&kept);
        while (!atomic_compare_exchange_weak(&kept, &header->next_kept, header))
            continue;
        return;
    }
    give_back(header);
}

void mem_keep_freed(struct mem *mem)
{
    atomic_store(&mem->keeps_freed, true);
}

bool mem_keeps_freed(const struct mem *mem)
{
    return atomic_load(&mem->keeps_freed);
}

/* --- allocation ----------------------------------------------------------------------------- */

/* Count a fresh block on its line, in place of `less` bytes. false = another thread has reached the
 * limit meanwhile; the block is gone then. */
static bool place(struct mem *mem, struct header *header, struct line *line, size_t less)
{
    pthread_mutex_lock(&mem->lock);
    bool within = is_within(&mem->locations[MEM_HOST], header->bytes, less);
    if (within)
        line_move(mem, line, header->bytes, less);
    pthread_mutex_unlock(&mem->lock);
    header->line = line;
    if (!within)
        give_back(header);
    return within;
}

enum status mem_alloc(struct env *env, enum mem_category category, const char *name, size_t bytes,
                      void *out)
{
    struct mem *mem = env->mem;
    void *block = NULL;
    bytes = bytes ? bytes : 1;
    pthread_mutex_lock(&mem->lock);
    struct line *line = admit_line(mem, MEM_HOST, category, name, bytes);
    pthread_mutex_unlock(&mem->lock);

    struct header *header = line ? system_take(bytes) : NULL;
    if (header && place(mem, header, line, 0))
        block = block_of(header);
    memcpy(out, &block, sizeof block);
    return block ? STATUS_OK : fail_memory(env, MEM_HOST, category, name, bytes, 0);
}

static enum status fail_product(struct env *env, enum mem_category category, const char *name,
                                size_t count, size_t size)
{
    return FAIL(env, MEMORY, "out of memory: cannot take %zu times %zu bytes for %s '%s'", count,
                size, mem_category_word(category), name);
}

enum status mem_alloc_array(struct env *env, enum mem_category category, const char *name,
                            size_t count, size_t size, void *out)
{
    size_t bytes;
    if (!__builtin_mul_overflow(count, size, &bytes))
        return mem_alloc(env, category, name, bytes, out);
    memset(out, 0, sizeof(void *));
    return fail_product(env, category, name, count, size);
}

enum status mem_resize(struct env *env, void *block, size_t bytes)
{
    struct mem *mem = env->mem;
    void *old_block;
    memcpy(&old_block, block, sizeof old_block);
    CHECK(old_block != NULL);
    struct header *old = header_of(old_block);
    struct line *line = old->line;
    bytes = bytes ? bytes : 1;

    pthread_mutex_lock(&mem->lock);
    bool admitted = admit(mem) && is_within(&mem->locations[MEM_HOST], bytes, old->bytes);
    pthread_mutex_unlock(&mem->lock);
    struct header *fresh = admitted ? system_take(bytes) : NULL;
    if (!fresh || !place(mem, fresh, line, old->bytes))
        return fail_memory(env, MEM_HOST, line->category, line->name, bytes, old->bytes);
    memcpy(block_of(fresh), old_block, old->bytes < bytes ? old->bytes : bytes);
    give_or_keep(mem, old);
    void *fresh_block = block_of(fresh);
    memcpy(block, &fresh_block, sizeof fresh_block);
    return STATUS_OK;
}

enum status mem_grow_array(struct env *env, enum mem_category category, const char *name,
                           size_t count, size_t size, void *array)
{
    void *old;
    size_t bytes;
    memcpy(&old, array, sizeof old);
    if (!old)
        return mem_alloc_array(env, category, name, count, size, array);
    if (__builtin_mul_overflow(count, size, &bytes))
        return fail_product(env, category, name, count, size);
    return mem_resize(env, array, bytes);
}

void mem_free(struct env *env, void *block)
{
    if (!block)
        return;
    struct header *header = header_of(block);
    pthread_mutex_lock(&env->mem->lock);
    line_move(env->mem, header->line, 0, header->bytes);
    pthread_mutex_unlock(&env->mem->lock);
    give_or_keep(env->mem, header);
}

enum status mem_strdup(struct env *env, const char *text, char **copy)
{
    size_t bytes = strlen(text) + 1;
    TRY(mem_alloc(env, MEM_OTHER, "string", bytes, copy));
    memcpy(*copy, text, bytes);
    return STATUS_OK;
}

enum status mem_count(struct env *env, enum mem_location location, enum mem_category category,
                      const char *name, size_t bytes)
{
    struct mem *mem = env->mem;
    pthread_mutex_lock(&mem->lock);
    struct line *line = admit_line(mem, location, category, name, bytes);
    if (line)
        line_move(mem, line, bytes, 0);
    pthread_mutex_unlock(&mem->lock);
    return line ? STATUS_OK : fail_memory(env, location, category, name, bytes, 0);
}

void mem_uncount(struct env *env, enum mem_location location, enum mem_category category,
                 const char *name, size_t bytes)
{
    pthread_mutex_lock(&env->mem->lock);
    struct line *line = find_line(env->mem, location, category, name, false);
    CHECK(line != NULL);
    line_move(env->mem, line, 0, bytes);
    pthread_mutex_unlock(&env->mem->lock);
}

/* --- queries -------------------------------------------------------------------------------- */

static struct tally read_tally(const struct mem *mem, const struct tally *tally)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&mem->lock;
    pthread_mutex_lock(lock);
    struct tally copy = *tally;
    pthread_mutex_unlock(lock);
    return copy;
}

struct mem_sums mem_sums(const struct mem *mem, enum mem_location location, bool most)
{
    struct mem_sums sums;
    CHECK_LT((unsigned)location, MEM_LOCATION_COUNT);
    const struct account *account = &mem->locations[location];
    pthread_mutex_lock((pthread_mutex_t *)&mem->lock);
    for (int c = 0; c < MEM_CATEGORY_COUNT; c++)
        sums.bytes[c] = most ? account->categories[c].peak : account->categories[c].now;
    sums.total_bytes = most ? account->total.peak : account->total.now;
    pthread_mutex_unlock((pthread_mutex_t *)&mem->lock);
    return sums;
}

size_t mem_bytes(const struct mem *mem, enum mem_category category)
{
    CHECK_LT((unsigned)category, MEM_CATEGORY_COUNT);
    return read_tally(mem, &mem->whole.categories[category]).now;
}

size_t mem_peak(const struct mem *mem, enum mem_category category)
{
    CHECK_LT((unsigned)category, MEM_CATEGORY_COUNT);
    return read_tally(mem, &mem->whole.categories[category]).peak;
}

size_t mem_total(const struct mem *mem)
{
    return read_tally(mem, &mem->whole.total).now;
}

size_t mem_total_peak(const struct mem *mem)
{
    return read_tally(mem, &mem->whole.total).peak;
}

int64_t mem_allocation_count(const struct mem *mem)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&mem->lock;
    pthread_mutex_lock(lock);
    int64_t count = mem->allocation_count;
    pthread_mutex_unlock(lock);
    return count;
}

void mem_visit(const struct mem *mem, mem_visit_fn *visit, void *user)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&mem->lock;
    pthread_mutex_lock(lock);
    for (int i = 0; i < LINE_BUCKETS; i++)
        for (const struct line *line = mem->buckets[i]; line; line = line->next)
            if (line->bytes > 0)
                visit(user,
                      &(struct mem_line){line->location, line->category, line->name, line->bytes});
    pthread_mutex_unlock(lock);
}

void mem_limit(struct mem *mem, enum mem_location location, size_t bytes, const char *key)
{
    CHECK_LT((unsigned)location, MEM_LOCATION_COUNT);
    pthread_mutex_lock(&mem->lock);
    mem->locations[location].limit = bytes;
    mem->locations[location].limit_key = key;
    pthread_mutex_unlock(&mem->lock);
}

void mem_fail_at(struct mem *mem, int64_t n)
{
    pthread_mutex_lock(&mem->lock);
    mem->until_failure = n;
    pthread_mutex_unlock(&mem->lock);
}

bool mem_is_there(size_t bytes)
{
    void *room = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return room != MAP_FAILED && munmap(room, bytes) == 0;
}
