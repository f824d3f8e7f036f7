/* cpu_impl -- what the files of the cpu back end share: how work is divided among threads, and the
 * slots.
 *
 * The shape alone decides how work is divided into chunks, so the bits do not depend on which
 * thread computes a chunk. An op's slot calls IN_THREADS(threads, x_thread(...)): every thread
 * calls x_thread, which does its part of the chunks, by `omp for` with a static schedule or, where
 * chunks take unequal times, by next_chunk.
 */
#ifndef OPS_CPU_CPU_IMPL_H
#define OPS_CPU_CPU_IMPL_H
#include <omp.h>
#include "ops/ops_impl.h"

/* Compiled for a level (cpu_level.h), the names of functions end with it. */
#ifdef CPU_LEVEL
#define CPU_LEVEL_PASTE(name, level) name##_##level
#define CPU_LEVEL_JOIN(name, level)  CPU_LEVEL_PASTE(name, level)
#define CPU_LEVEL_NAME(name)         CPU_LEVEL_JOIN(name, CPU_LEVEL)
#include "cpu_level_names.h"
#endif

/* Work is done when a slot returns, so most slots do not use `stream`. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* Elements of a flat range that a thread takes at a time; a multiple of OPS_BLOCK */
#define FLAT_CHUNK 16384

static inline int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* The number of threads for work on `elements` values: waking the threads costs more than a few
 * thousand values. Always one or all: the OpenMP library ends threads that a smaller team leaves
 * out. */
static inline int cpu_threads(const struct ops *ops, int64_t elements)
{
    return elements < 8192 ? 1 : ops->threads;
}

/* The same for one token in decoding, where a step is a chain of short calls: threads pay off from
 * about 100 us of work on one thread. Just after the start of a program two threads may sit on one
 * processor for many calls, each waiting for the other. */
static inline int cpu_threads_of_token(const struct ops *ops, int64_t elements)
{
    return elements < 512 * 1024 ? 1 : ops->threads;
}

/* Each of `threads` threads makes the call. The number is explicit, because BLAS libraries built on
 * OpenMP change the default. Inside, the default is one, because such a BLAS would otherwise start
 * threads of its own. With one thread there is no parallel region: that would allocate memory. */
#define IN_THREADS(threads, call)                              \
    do {                                                       \
        int thread_count_ = (threads);                         \
        if (thread_count_ > 1) {                               \
            _Pragma("omp parallel num_threads(thread_count_)") \
            {                                                  \
                omp_set_num_threads(1);                        \
                call;                                          \
            }                                                  \
        } else {                                               \
            int default_threads_ = omp_get_max_threads();      \
            omp_set_num_threads(1);                            \
            call;                                              \
            omp_set_num_threads(default_threads_);             \
        }                                                      \
    } while (0)

/* The next chunk that no thread has taken; *next starts at 0. */
static inline int64_t next_chunk(int64_t *next)
{
    return __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
}

/* How many rows a block has in sums over rows. Each block has a partial sum, and the partial sums
 * are added in order. There are at most ROW_BLOCKS: enough work for many threads. */
#define ROW_BLOCKS 64
static inline int64_t cpu_block_rows(int64_t rows)
{
    int64_t even = ceil_div(rows, ROW_BLOCKS);
    return even < 16 ? 16 : even;
}

/* The partial sums of `width` columns, `stride` apart */
static inline void cpu_sum_partials(int64_t blocks, int64_t stride, int64_t width,
                                    const float *partials, float *sum)
{
    memcpy(sum, partials, (size_t)width * sizeof(float));
    for (int64_t block = 1; block < blocks; block++)
        for (int64_t c = 0; c < width; c++)
            sum[c] = sum[c] + partials[block * stride + c];
}

/* ops_cpu.c: override ref's table, and the instructions that the loops were compiled for */
void cpu_fill(struct ops_backend *table);
const char *cpu_vectors(void);

/* cpu_blas.c: reserve the memory that libraries need, before the first op */
enum status cpu_blas_open(struct ops *ops);
void cpu_blas_close(struct ops *ops);

/* cpu_matmul.c */
void cpu_linear(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                const void *x, const void *w, const void *bias, void *y);
void cpu_linear_gelu(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                     const struct linear_gelu *a);
void cpu_linear_dx(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                   const void *dy, const void *w, void *dx);
void cpu_linear_dx_dgelu(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                         const struct linear_dx_dgelu *a);
void cpu_linear_dw(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                   const struct linear_dw *a);
bool cpu_sums_dw(const struct ops *ops, struct linear l, int64_t rows, enum dtype type,
                 bool several);
void cpu_linear_dw_sum(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                       const struct linear_dw_sum *a);
/* sums (width) of the columns of x (rows, width): the bits of cpu_linear_dw's dbias */
void cpu_column_sums(struct ops *ops, int64_t rows, int64_t width, const float *x, float *sums);

/* c (m, n) = op(a) op(b) (+ c), with what is fused before and after each tile. c and gelu overlap
 * neither a nor b. */
struct cpu_product {
    int64_t m, n, k;
    bool a_transposed, b_transposed;
    const float *a, *b;
    const uint16_t *b_bf16; /* or NULL: b, in bf16; only for products that round to it */
    float *c;
    int64_t a_stride, b_stride, c_stride; /* elements from row to row; 0: dense */
    bool add;                             /* c is added to, not overwritten */
    const float *bias;                    /* (n) or NULL: added to every row of c */
    const float *start; /* (m, n), not c, or NULL: c = times op(a) op(b) + start_times start */
    float times, start_times;
    bool symmetric;        /* c is symmetric: half of it is computed, the other half copied */
    float *gelu;           /* (m, n) or NULL: receives gelu(c) */
    const float *gelu_pre; /* (m, n) or NULL: c is multiplied by gelu'(gelu_pre) */
    float *sum;            /* (m, n) or NULL: receives c, rounded to sum_type, or is added to */
    enum dtype sum_type;
    bool sum_adds;
};
void cpu_multiply(struct ops *ops, const struct cpu_product *p);
bool cpu_takes_bf16(const struct ops *ops);

/* cpu_pointwise.c, with those below */
void cpu_gelu_exact(struct ops *ops, struct stream *stream, int64_t count, const void *pre,
                    void *y);
void cpu_gelu_exact_backward(struct ops *ops, struct stream *stream, int64_t count, const void *pre,
                             const void *dy, void *dpre);
void cpu_geglu(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
               const void *gate_up, void *y);
void cpu_geglu_backward(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                        const void *gate_up, const void *dy, void *dgate_up, void *act);
void cpu_scale(struct ops *ops, struct stream *stream, int64_t count, double factor, void *x);

/* cpu_heads.c */
void cpu_head_sums(struct ops *ops, struct stream *stream, struct head_rms n,
                   const struct head_sums *a);
void cpu_head_rms(struct ops *ops, struct stream *stream, struct head_rms n,
                  const struct head_rms_forward *a);
void cpu_head_rms_backward(struct ops *ops, struct stream *stream, struct head_rms n,
                           const struct head_rms_backward *a);
size_t cpu_head_rms_scratch(const struct ops *ops, struct head_rms n);

/* cpu_orthogonalize.c */
void cpu_orthogonalize(struct ops *ops, struct stream *stream, int64_t rows, int64_t columns,
                       void *x, void *scratch);
size_t cpu_orthogonalize_scratch(const struct ops *ops, int64_t rows, int64_t columns);

/* cpu_norm.c */
void cpu_add_norm(struct ops *ops, struct stream *stream, struct norm n, int64_t rows,
                  const struct add_norm *a);
void cpu_norm_apply(struct ops *ops, struct stream *stream, struct norm n, int64_t rows,
                    const struct norm_apply *a);
void cpu_norm_backward(struct ops *ops, struct stream *stream, struct norm n, int64_t rows,
                       const struct norm_backward *a);
size_t cpu_norm_scratch(const struct ops *ops, struct norm n, int64_t rows);

/* cpu_pointwise.c */
void cpu_add(struct ops *ops, struct stream *stream, int64_t count, const void *a, const void *b,
             void *sum);
void cpu_gelu(struct ops *ops, struct stream *stream, int64_t count, const void *pre, void *y);
void cpu_gelu_backward(struct ops *ops, struct stream *stream, int64_t count, const void *pre,
                       const void *dy, void *dpre);
void cpu_swiglu(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                const void *gate_up, void *y);
void cpu_swiglu_backward(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                         const void *gate_up, const void *dy, void *dgate_up, void *act);
void cpu_rope(struct ops *ops, struct stream *stream, struct attention a, const float *table,
              struct past past, bool inverse, void *qkv);

/* cpu_attention.c */
void cpu_attention(struct ops *ops, struct stream *stream, struct attention a, const void *qkv,
                   void *out, float *lse, void *scratch);
void cpu_attention_backward(struct ops *ops, struct stream *stream, struct attention a,
                            const struct attention_backward *g);
size_t cpu_attention_scratch(const struct ops *ops, struct attention a);
void cpu_attention_cached(struct ops *ops, struct stream *stream, struct attention a,
                          const struct attention_cached *c);

/* cpu_embedding.c */
void cpu_embedding(struct ops *ops, struct stream *stream, struct embedding e,
                   const int32_t *tokens, const void *wte, const void *wpe, struct past past,
                   void *out);
void cpu_embedding_backward(struct ops *ops, struct stream *stream, struct embedding e,
                            const int32_t *tokens, const void *dout, void *dwte, void *dwpe,
                            void *scratch);
size_t cpu_embedding_scratch(const struct ops *ops, struct embedding e);

/* cpu_loss.c */
void cpu_cross_entropy(struct ops *ops, struct stream *stream, struct logits l, int64_t rows,
                       const struct cross_entropy *a);
void cpu_cross_entropy_part(struct ops *ops, struct stream *stream, struct logits l, int64_t rows,
                            const int32_t *labels, const void *logits, double *parts);
void cpu_cross_entropy_join(struct ops *ops, struct stream *stream, struct logits l, int64_t rows,
                            int ranks, const double *parts, const struct cross_entropy *a);
void cpu_softcap(struct ops *ops, struct stream *stream, int64_t count, double cap, void *x);

/* cpu_route.c */
void cpu_route(struct ops *ops, struct stream *stream, struct routing n, int64_t rows,
               const struct route *a);
void cpu_route_backward(struct ops *ops, struct stream *stream, struct routing n, int64_t rows,
                        const struct route_backward *a);
size_t cpu_route_scratch(const struct ops *ops, struct routing n, int64_t rows);
void cpu_gate_rows(struct ops *ops, struct stream *stream, enum dtype type,
                   const struct gate_rows *a);

/* cpu_flat.c */
void cpu_tree_sums(struct ops *ops, struct stream *stream, int64_t count, int level,
                   const double *values, double *sums);
void cpu_cast(struct ops *ops, struct stream *stream, void *dst, enum dtype dst_type,
              const void *src, enum dtype src_type, int64_t count);
void cpu_square_sums(struct ops *ops, struct stream *stream, enum dtype type,
                     const struct square_range *ranges, int range_count);
void cpu_find_nonfinite(struct ops *ops, struct stream *stream, enum dtype type, const void *x,
                        int64_t count, int64_t *first);
/* A cast of n elements on this thread. */
void cpu_cast_chunk(void *dst, enum dtype dst_type, const void *src, enum dtype src_type,
                    int64_t n);
/* Elements i .. i + n - 1 of x in f32: x itself, or converted into `room`. */
const float *cpu_as_f32(const void *x, enum dtype type, int64_t i, int64_t n, float *room);

/* cpu_update.c */
void cpu_update(struct ops *ops, struct stream *stream, const struct update *update,
                const struct step_scalars *scalars, const struct update_segment *segments,
                int segment_count);

/* What the rules need for one segment, in f32. */
struct cpu_factors {
    float beta1, rest1, beta2, rest2, eps, grad_scale;
    double inverse1, inverse2; /* 1 / correction, which is above 0 and at most 1 */
    float rate, decay, scale;  /* of the segment */
};
/* cpu_adamw.c: AdamW on n elements. */
void cpu_adamw(const struct cpu_factors *f, int64_t n, const float *grad, float *m, float *v,
               float *param);
/* cpu_adamw8.c: AdamW on the elements from `first` to before `end` of a segment, which are whole
 * blocks. `number`: of the update. */
void cpu_adamw8(const struct cpu_factors *f, const struct update_segment *s, int64_t number,
                int64_t first, int64_t end);
/* cpu_round.c: copy = param rounded stochastically to a 16-bit type; n elements of a segment,
 * starting at its element `first`. */
void cpu_round(const struct update_location *location, int64_t update, int64_t first, int64_t n,
               const float *param, enum dtype type, uint16_t *copy);

#endif
