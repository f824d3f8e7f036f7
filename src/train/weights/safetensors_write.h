/* safetensors_write -- writes a safetensors file without holding the whole model in memory.
 *
 * There are two steps. First a layout is made from names, types and shapes: the header, and the
 * offset of every tensor. All ranks that make it from the same list get the same layout. Then the
 * elements are written at these offsets: by safetensors_write on one rank, or by several ranks,
 * each writing its own ranges of the same file.
 */
#ifndef TRAIN_SAFETENSORS_WRITE_H
#define TRAIN_SAFETENSORS_WRITE_H
#include "train/weights/safetensors.h"

/* A tensor to write. The layout chooses the order in the file. */
struct safetensors_entry {
    const char *name;
    enum dtype type;
    int rank;
    int64_t shape[SAFETENSORS_RANK_MAX];
};

struct safetensors_pair { /* of __metadata__; "format" is added automatically */
    const char *key, *value;
};

struct safetensors_layout;

/* Entries and pairs are borrowed for the call. Two entries with the same name are an error. */
enum status safetensors_layout_create(struct env *env, const struct safetensors_entry *entries,
                                      int count, const struct safetensors_pair *metadata,
                                      int metadata_count, struct safetensors_layout **layout);
void safetensors_layout_destroy(struct safetensors_layout *layout); /* NULL is fine */

/* The first bytes of the file: length, JSON and padding. */
const void *safetensors_layout_header(const struct safetensors_layout *layout, size_t *bytes);
uint64_t safetensors_layout_file_bytes(const struct safetensors_layout *layout);
/* The offset in the file of entry i, an index into the entries given at creation. */
uint64_t safetensors_layout_begin(const struct safetensors_layout *layout, int i);

/* Fill out[0 .. count) with elements [first, first + count) of entry i, in the entry's type. */
typedef enum status safetensors_fill_fn(void *user, int i, int64_t first, int64_t count, void *out);

/* Write the whole file under a temporary name, sync it, and rename it to `path`. `fill` is called
 * for the tensors in file order, in chunks of up to 4 MiB. If `fill` fails, its status is returned
 * and `path` is unchanged. `path` NULL: only `fill` is called, in the same order, for ranks that take
 * part in a collective `fill` while another rank writes. */
enum status safetensors_write(struct env *env, const char *path,
                              const struct safetensors_layout *layout, safetensors_fill_fn *fill,
                              void *user);

#endif
