/* cpu_attention -- what the files of attention share: one head's view of its tensors, and the work
 * of one task by a kernel of our own (cpu_kernel.h).
 */
#ifndef OPS_CPU_CPU_ATTENTION_H
#define OPS_CPU_CPU_ATTENTION_H
#include "ops/cpu/cpu_impl.h"
#include "ops/cpu/cpu_kernel.h"

/* One query head and its key head, or, where a function says so, the first query head of those that
 * share a key head: the next one is `width` columns and `tokens` of lse further. Query row t is at
 * position past + t, and `shape` says which keys it sees. */
struct cpu_head {
    struct attention shape;
    int64_t width, tokens, past;
    float scale, cap;
    const float *q, *k, *v;
    int64_t q_stride, kv_stride; /* floats between the starts of two rows */
    float *out;
    int64_t out_stride;
    float *lse; /* (T) or NULL */
};

struct cpu_head_gradient {
    const float *dout; /* strides as in struct cpu_head: out_stride, then q_stride and kv_stride */
    float *dq, *dk, *dv;
};

static inline int64_t cpu_round_up(int64_t n, int64_t to)
{
    return ceil_div(n, to) * to;
}

/* Query heads that share a key head */
static inline int64_t cpu_head_group(struct attention a)
{
    return a.heads / a.kv_heads;
}

/* --- cpu_attention_blas.c: a task is a block of rows of one head; backward, a group */

#define CPU_ATTENTION_BLAS_ROWS 64
int64_t cpu_attention_blas_room(void); /* floats of memory that a thread needs */
void cpu_attention_blas_forward(const struct cpu_head *h, int64_t t0, float *room);
/* All of the key head of the group from `first` on */
void cpu_attention_blas_backward(const struct cpu_head *first, const struct cpu_head_gradient *g,
                                 float *room);

/* --- cpu_attention_forward.c: a task is some query rows of all heads of a group */

/* Rows of a task so that there are `tasks`, if that is not too many: a multiple of the kernel's
 * columns, at most as with tasks = 1. They do not change the bits. */
int64_t cpu_attention_rows(const struct cpu_kernel *kernel, struct attention a, int64_t tasks);
/* Floats of memory that a thread needs */
int64_t cpu_attention_forward_room(const struct cpu_kernel *kernel, struct attention a);
/* Rows t0 .. t0 + rows - 1 of the heads from `first` on */
void cpu_attention_forward_task(const struct cpu_kernel *kernel, const struct cpu_head *first,
                                int64_t t0, int64_t rows, float *room);

/* --- cpu_attention_backward.c: a task is a block of keys of a head, and the queries that see it */

int64_t cpu_attention_key_blocks(struct attention a);
int64_t cpu_attention_backward_room(const struct cpu_kernel *kernel, struct attention a);
/* Block `block` of the keys of head `h`, which is number `turn` of those that share its key head.
 * `delta`: rowsum(dout out), as lse. `done`: how far each block of this head is, 0 at first; the
 * counters of the head before come right before these. Adds to dq when the block before it has, and
 * to dk and dv when the head before it has, so these tasks must be started first. */
void cpu_attention_backward_task(const struct cpu_kernel *kernel, const struct cpu_head *h,
                                 const struct cpu_head_gradient *g, const float *delta,
                                 int64_t block, int64_t turn, int64_t *done, float *room);

/* --- cpu_attention_panel.c: packing of rows, and back */

/* Rows of a tensor, `stride` floats apart */
struct cpu_rows {
    int64_t count, width;
    const float *x;
    int64_t stride;
};
/* Panels of `panel` rows, for a product over the columns */
void cpu_attention_pack_across(void (*pack)(const struct cpu_panel *, void *), int64_t panel,
                               const struct cpu_rows *r, float *to);
/* Panels of the kernel's rows, for a product over these rows; each has memory for `room` of them. */
void cpu_attention_pack_along(const struct cpu_kernel *kernel, const struct cpu_rows *r,
                              int64_t room, float *to);

/* to[i * stride + d] (+)= panel[d * cols + i] times[i] for `count` rows i and `depth` columns d;
 * times may be NULL: 1 */
struct cpu_turn {
    const float *panel;
    int64_t cols, count, depth;
    const float *times;
    bool add;
};
void cpu_attention_turn(const struct cpu_turn *t, float *to, int64_t stride);

/* Ask for rows that are used soon: they are far apart, so the processor does not see it coming. */
static inline void cpu_fetch_rows(struct cpu_rows r)
{
    enum { LINE = 16 }; /* floats of a line of cache */
    for (int64_t i = 0; i < r.count; i++)
        for (int64_t d = 0; d < r.width; d += LINE)
            __builtin_prefetch(r.x + i * r.stride + d);
}

#endif
