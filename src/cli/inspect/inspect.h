/* inspect -- the parts of `sifr inspect`: one function for each kind of file or folder, and the
 * printers (inspect_print.c) that write a value as a line or as a field of one JSON object. */
#ifndef CLI_INSPECT_H
#define CLI_INSPECT_H
#include "cli/command.h"
#include "cli/json_out.h"
#include "train/weights/safetensors.h"
#include "train/data/shard.h"

struct inspection {
    struct cli *cli;
    const char *path;
    bool headed;           /* the path has been printed; it is printed before the first value */
    bool differs;          /* --diff found a difference */
    struct json_out *json; /* NULL = print lines */
};

enum status inspect_safetensors(struct inspection *in);
enum status inspect_model(struct inspection *in); /* a Hugging Face directory */
enum status inspect_shard(struct inspection *in, enum shard_format format);
enum status inspect_shards(struct inspection *in); /* a folder that `sifr tokenize` wrote */
enum status inspect_tokenizer(struct inspection *in);
enum status inspect_run(struct inspection *in); /* a run folder */

/* Compare every byte of a checkpoint, or of all checkpoints of a run folder, with its hashes. */
enum status inspect_verify(struct inspection *in);

/* Compare in->path with another model or checkpoint; STATUS_FORMAT when they differ. */
enum status inspect_diff(struct inspection *in, const char *other);

/* --- inspect_print.c ------------------------------------------------------------------------ */
void inspect_string(struct inspection *in, const char *name, const char *value);
void inspect_int(struct inspection *in, const char *name, int64_t value);
void inspect_bytes(struct inspection *in, const char *name, size_t bytes);
void inspect_real(struct inspection *in, const char *name, double value);
/* A list of the JSON object; lines have no lists. */
void inspect_open_list(struct inspection *in, const char *name);
void inspect_close_list(struct inspection *in);
void inspect_shape(const struct safetensor *t, char *out, size_t bytes);    /* "[2, 3]" */
void inspect_shape_json(struct json_out *json, const struct safetensor *t); /* dtype and shape */

#endif
