/* token_file -- a token shard that a command was given, with or without its --format: opened, and
 * what does not fit said in that flag's name. */
#ifndef CLI_TOKEN_FILE_H
#define CLI_TOKEN_FILE_H
#include "train/data/shard.h"

enum status token_file_open(struct env *env, const char *path, enum shard_format format,
                            struct shard **shard);

#endif
