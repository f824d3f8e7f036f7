/* mem -- allocation with an account by location, category and name, limits, and injected failures.
 *
 * All host memory of the engine is allocated here; device back ends report their own allocations
 * with mem_count. Blocks are zeroed and aligned to 64 bytes. Blocks of a megabyte and more are
 * mapped, with huge pages where the system provides them. The account is thread-safe.
 */
#ifndef BASE_MEM_H
#define BASE_MEM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

/* What a byte is for. The words are those of metrics.jsonl and `sifr plan`. */
#define MEM_CATEGORIES(X)         \
    X(PARAMS, "params")           \
    X(GRADS, "grads")             \
    X(OPTIMIZER, "optimizer")     \
    X(SLOTS, "slots")             \
    X(ACTIVATIONS, "activations") \
    X(SCRATCH, "scratch")         \
    X(COMM, "comm")               \
    X(LOADER, "loader")           \
    X(SNAPSHOT, "snapshot")       \
    X(OTHER, "other")

enum mem_category {
#define X(name, word) MEM_##name,
    MEM_CATEGORIES(X)
#undef X
        MEM_CATEGORY_COUNT
};

/* Where memory is. A rank with a GPU uses several locations; each has its own limit, so they are not
 * added up. */
enum mem_location {
    MEM_HOST, /* ordinary and pinned */
    MEM_GPU,
    MEM_DISK, /* files that stand for memory (device/far.h) */
    MEM_LOCATION_COUNT
};

struct env;
struct mem;

struct mem *mem_create(void);
void mem_destroy(struct mem *mem); /* NULL is fine; CHECKs that nothing is left */
const char *mem_category_word(enum mem_category category);
const char *mem_location_word(enum mem_location location); /* "host", "gpu", "disk" */

/* *out = `bytes` zeroed bytes (at least one), counted under (category, name). `name` is copied.
 * On failure *out is NULL, the error names category, name and size, and STATUS_MEMORY is
 * returned. `out` is the address of any pointer. */
enum status mem_alloc(struct env *env, enum mem_category category, const char *name, size_t bytes,
                      void *out);
/* count * size with an overflow check. */
enum status mem_alloc_array(struct env *env, enum mem_category category, const char *name,
                            size_t count, size_t size, void *out);
/* Grow *block to `bytes` (contents kept, new part zeroed), same category and name. On failure
 * *block is unchanged. */
enum status mem_resize(struct env *env, void *block, size_t bytes);
/* Allocate *array when it is NULL, else resize it, to count * size bytes with an overflow check. On
 * failure it is unchanged. */
enum status mem_grow_array(struct env *env, enum mem_category category, const char *name,
                           size_t count, size_t size, void *array);
void mem_free(struct env *env, void *block); /* NULL is fine */
/* From now on freed blocks leave the account but stay allocated until the process ends: a message
 * library, for example, may still write to them. */
void mem_keep_freed(struct mem *mem);
bool mem_keeps_freed(const struct mem *mem);
enum status mem_strdup(struct env *env, const char *text, char **copy);

/* Count or uncount bytes that a device back end allocated itself. Injected failures apply as to
 * mem_alloc. */
enum status mem_count(struct env *env, enum mem_location location, enum mem_category category,
                      const char *name, size_t bytes);
void mem_uncount(struct env *env, enum mem_location location, enum mem_category category,
                 const char *name, size_t bytes);

/* The account of one location: current, or the peak of each figure (`most`). */
struct mem_sums {
    size_t bytes[MEM_CATEGORY_COUNT], total_bytes;
};
struct mem_sums mem_sums(const struct mem *mem, enum mem_location location, bool most);

/* The account of host and GPU memory together. Bytes on disk are not memory and not in it: only
 * mem_sums and mem_visit report them. */
size_t mem_bytes(const struct mem *mem, enum mem_category category); /* now */
size_t mem_peak(const struct mem *mem, enum mem_category category);  /* peak */
size_t mem_total(const struct mem *mem);
size_t mem_total_peak(const struct mem *mem);
int64_t mem_allocation_count(const struct mem *mem); /* so far */
struct mem_line {
    enum mem_location location;
    enum mem_category category;
    const char *name; /* borrowed */
    size_t bytes;
};
typedef void mem_visit_fn(void *user, const struct mem_line *line);
/* Every (location, category, name) with bytes > 0 now. */
void mem_visit(const struct mem *mem, mem_visit_fn *visit, void *user);

/* From now on an allocation or count with which the location would hold more than `bytes` fails with
 * STATUS_MEMORY; 0 = no limit. `key` (borrowed, a constant) names what sets it, for the message. */
void mem_limit(struct mem *mem, enum mem_location location, size_t bytes, const char *key);

/* Whether the system would grant `bytes` now; for libraries that do not survive a failed
 * allocation. */
bool mem_is_there(size_t bytes);

/* Make the n-th allocation from now (1 = the next) fail; 0 turns it off. */
void mem_fail_at(struct mem *mem, int64_t n);

#endif
