/* cuda_attention_impl -- what the implementations of attention share. */
#ifndef OPS_CUDA_CUDA_ATTENTION_IMPL_H
#define OPS_CUDA_CUDA_ATTENTION_IMPL_H
#include "ops/cuda/attention/cuda_attention.h"
#include "ops/ops.h"

static inline struct cuda_heads attention_heads(struct attention a)
{
    return (struct cuda_heads){.batch = a.batch,
                               .tokens = a.tokens,
                               .heads = a.heads,
                               .kv_heads = a.kv_heads,
                               .width = a.head_width,
                               .valid = a.head_width,
                               .window = a.window > 0 ? a.window : a.tokens,
                               .scale = (float)ops_attention_scale(a),
                               .cap = (float)a.cap};
}

/* Row sums of dout * out, or lse */
static inline size_t attention_sums_bytes(struct attention a)
{
    return ((size_t)(a.batch * a.heads * a.tokens) * sizeof(float) + 255) / 256 * 256;
}

static inline bool attention_aligned(const void *a, const void *b, const void *c, const void *d)
{
    return ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) % 16 == 0;
}

#endif
