/* token_file -- opens a token shard for a command that has --format, and checks that the flag and
 * the file agree. */
#ifndef CLI_TOKEN_FILE_H
#define CLI_TOKEN_FILE_H
#include "train/data/shard.h"

enum status token_file_open(struct env *env, const char *path, enum shard_format format,
                            struct shard **shard);

#endif
