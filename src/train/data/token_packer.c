#include "train/data/token_packer.h"
#include <string.h>

int token_packer_width(int64_t vocab)
{
    return vocab <= 65536 ? 2 : 4;
}

void token_packer_init(struct token_packer *p, struct env *env, int64_t vocab, uint64_t at,
                       token_packer_write_fn *write, void *user)
{
    CHECK(vocab > 0 && vocab <= INT32_MAX);
    p->env = env;
    p->write = write;
    p->user = user;
    p->vocab = vocab;
    p->token_bytes = token_packer_width(vocab);
    p->count = 0;
    p->at = at;
    p->buffered = 0;
}

enum status token_packer_flush(struct token_packer *p)
{
    if (p->buffered == 0)
        return STATUS_OK;
    TRY(p->write(p->user, p->at, p->buffer, p->buffered));
    p->at += p->buffered;
    p->buffered = 0;
    return STATUS_OK;
}

enum status token_packer_add(struct token_packer *p, const int32_t *tokens, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t token = (uint32_t)tokens[i];
        if (token >= p->vocab)
            return FAIL(p->env, FORMAT, "token %u is beyond the vocabulary of %lld", token,
                        (long long)p->vocab);
        memcpy(p->buffer + p->buffered, &token, (size_t)p->token_bytes); /* little-endian */
        p->buffered += (size_t)p->token_bytes;
        if (p->buffered == TOKEN_PACKER_BYTES)
            TRY(token_packer_flush(p));
    }
    p->count += count;
    return STATUS_OK;
}
