/* inspect -- what `sifr inspect` knows about each kind of file; every function prints one, as
 * lines or as JSON. */
#ifndef CLI_INSPECT_H
#define CLI_INSPECT_H
#include "cli/command.h"
#include "cli/json_out.h"
#include "train/weights/safetensors.h"
#include "train/data/shard.h"

struct inspection {
    struct cli *cli;
    const char *path;
    bool headed;           /* the path has been printed: not before it is known what it is */
    bool differs;          /* --diff found a difference */
    struct json_out *json; /* NULL: lines for people */
};

enum status inspect_safetensors(struct inspection *in);
enum status inspect_model(struct inspection *in); /* a Hugging Face directory */
enum status inspect_shard(struct inspection *in, enum shard_format format);
enum status inspect_shards(struct inspection *in); /* a folder of them, as sifr tokenize makes */
enum status inspect_tokenizer(struct inspection *in);
enum status inspect_run(struct inspection *in); /* a run folder */

/* A checkpoint, or a run folder with all of its: every byte of it. */
enum status inspect_verify(struct inspection *in);

/* in->path and another model or checkpoint; a difference is a failure. */
enum status inspect_diff(struct inspection *in, const char *other);

/* A name and a value, in either manner. */
void inspect_string(struct inspection *in, const char *name, const char *value);
void inspect_int(struct inspection *in, const char *name, int64_t value);
void inspect_bytes(struct inspection *in, const char *name, size_t bytes);
void inspect_real(struct inspection *in, const char *name, double value);
void inspect_shape(const struct safetensor *t, char *out, size_t bytes); /* "[2, 3]" */

#endif
