/* safetensors_write -- writing a safetensors file without ever holding the model whole.
 *
 * Two steps. A layout is made from names, types and shapes alone: it is the header and the place of
 * every tensor, the same on every rank that makes it from the same list. Then bytes are written to
 * those places, by safetensors_write from one rank, or by several ranks each with its own ranges of
 * the one file.
 */
#ifndef TRAIN_SAFETENSORS_WRITE_H
#define TRAIN_SAFETENSORS_WRITE_H
#include "train/weights/safetensors.h"

/* What to write; the order in the file is the layout's choice. */
struct safetensors_entry {
    const char *name;
    enum dtype type;
    int rank;
    int64_t shape[SAFETENSORS_RANK_MAX];
};

struct safetensors_pair { /* of __metadata__; "format" is always there and need not be given */
    const char *key, *value;
};

struct safetensors_layout;

/* Entries and pairs are borrowed for the call. Two entries with one name are an error. */
enum status safetensors_layout_create(struct env *env, const struct safetensors_entry *entries,
                                      int count, const struct safetensors_pair *metadata,
                                      int metadata_count, struct safetensors_layout **layout);
void safetensors_layout_destroy(struct safetensors_layout *layout); /* NULL is fine */

/* The first bytes of the file: length, JSON and padding. */
const void *safetensors_layout_header(const struct safetensors_layout *layout, size_t *bytes);
uint64_t safetensors_layout_file_bytes(const struct safetensors_layout *layout);
/* Where entry i (as given at creation) begins in the file, and its number of elements. */
uint64_t safetensors_layout_begin(const struct safetensors_layout *layout, int i);
int64_t safetensors_layout_count(const struct safetensors_layout *layout, int i);

/* Supply out[0 .. count) = elements first .. first+count of entry i, in the entry's type. */
typedef enum status safetensors_fill_fn(void *user, int i, int64_t first, int64_t count, void *out);

/* Write the whole file: beside `path`, durable, then renamed. Tensors are asked for in file
 * order, in pieces of at most a few megabytes. When `fill` fails its status comes back and
 * `path` is as it was. */
enum status safetensors_write(struct env *env, const char *path,
                              const struct safetensors_layout *layout, safetensors_fill_fn *fill,
                              void *user);

/* The calls of `fill` that safetensors_write makes, in its order, without a file: for ranks that
 * take part in gathering what another one writes. */
enum status safetensors_follow(struct env *env, const struct safetensors_layout *layout,
                               safetensors_fill_fn *fill, void *user);

#endif
