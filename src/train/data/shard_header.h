/* shard_header -- constants of an llm.c token shard's header, for reader and writer. */
#ifndef TRAIN_SHARD_HEADER_H
#define TRAIN_SHARD_HEADER_H

#define SHARD_HEADER_WORDS 256 /* int32 each */
#define SHARD_MAGIC_U16    20240520
#define SHARD_VERSION_U16  1
#define SHARD_MAGIC_U32    20240801
#define SHARD_VERSION_U32  7

#endif
