/* token_packer -- packs tokens as 16- or 32-bit little-endian numbers in a fixed buffer.
 *
 * 16 bits are enough for vocabularies up to 65536. The write callback receives every byte once, in
 * order.
 */
#ifndef TRAIN_TOKEN_PACKER_H
#define TRAIN_TOKEN_PACKER_H
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"

#define TOKEN_PACKER_BYTES ((size_t)1 << 18)

typedef enum status token_packer_write_fn(void *user, uint64_t at, const void *data, size_t bytes);

struct token_packer { /* public fields; initialized by token_packer_init */
    struct env *env;  /* borrowed */
    token_packer_write_fn *write;
    void *user;
    int64_t vocab;
    int token_bytes;
    int64_t count;   /* tokens added so far */
    uint64_t at;     /* offset at which the buffer will be written */
    size_t buffered; /* bytes */
    uint8_t buffer[TOKEN_PACKER_BYTES];
};

int token_packer_width(int64_t vocab); /* bytes per token: 2 or 4 */

/* The first token is written at offset `at`. */
void token_packer_init(struct token_packer *packer, struct env *env, int64_t vocab, uint64_t at,
                       token_packer_write_fn *write, void *user);
enum status token_packer_add(struct token_packer *packer, const int32_t *tokens, int64_t count);
enum status token_packer_flush(struct token_packer *packer);

#endif
