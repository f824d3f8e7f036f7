/* ref -- the reference back end: the definition of the right result, in f32, f64, bf16 and f16.
 *
 * Plain loops with double sums, no threads, no optimizations. The maths is in templates
 * (ref_layers.h, ref_attention.h, ref_loss.h, ref_route.h) that are included here once for each compute type;
 * ops with types of their own are in ref_flat.c and ref_update.c. A template reads a REAL with GET and makes
 * one with PUT. A 16-bit REAL is a struct, so forgetting either does not compile.
 */
#include "ops/ref/ref_impl.h"

#define GET(value) (value)

#define REAL       float
#define PUT(value) ((float)(value))
#define REF(name)  ref_##name##_f32
#include "ops/ref/ref_layers.h"
#include "ops/ref/ref_heads.h"
#include "ops/ref/ref_attention.h"
#include "ops/ref/ref_loss.h"
#include "ops/ref/ref_route.h"
#undef REAL
#undef REF
#undef PUT

#define REAL       double
#define PUT(value) ((double)(value))
#define REF(name)  ref_##name##_f64
#include "ops/ref/ref_layers.h"
#include "ops/ref/ref_heads.h"
#include "ops/ref/ref_attention.h"
#include "ops/ref/ref_loss.h"
#include "ops/ref/ref_route.h"
#undef REAL
#undef REF
#undef PUT

#undef GET

#define GET(value) ref_from_bf16(value)
#define REAL       struct ref_bf16
#define PUT(value) ref_to_bf16((float)(value))
#define REF(name)  ref_##name##_bf16
#include "ops/ref/ref_layers.h"
#include "ops/ref/ref_heads.h"
#include "ops/ref/ref_attention.h"
#include "ops/ref/ref_loss.h"
#include "ops/ref/ref_route.h"
#undef REAL
#undef REF
#undef PUT
#undef GET

#define GET(value) ref_from_f16(value)
#define REAL       struct ref_f16
#define PUT(value) ref_to_f16((float)(value))
#define REF(name)  ref_##name##_f16
#include "ops/ref/ref_layers.h"
#include "ops/ref/ref_heads.h"
#include "ops/ref/ref_attention.h"
#include "ops/ref/ref_loss.h"
#include "ops/ref/ref_route.h"
#undef REAL
#undef REF
#undef PUT
#undef GET

static bool ref_supports(enum dtype type)
{
    return type == DTYPE_F32 || type == DTYPE_F64 || type == DTYPE_BF16 || type == DTYPE_F16;
}

#define TABLE(type)                                                                                \
    {                                                                                              \
        .name = "ref", .supports = ref_supports, .on_host = true, .chunk_logits = 16 << 20,        \
        .linear = ref_linear_##type, .linear_gelu = ref_linear_gelu_##type,                        \
        .linear_dx = ref_linear_dx_##type, .linear_dx_dgelu = ref_linear_dx_dgelu_##type,          \
        .linear_dw = ref_linear_dw_##type, .linear_dw_sum = ref_linear_dw_sum_##type,              \
        .add_norm = ref_add_norm_##type, .norm_apply = ref_norm_apply_##type,                      \
        .norm_backward = ref_norm_backward_##type, .norm_scratch = ref_norm_scratch_##type,        \
        .head_sums = ref_head_sums_##type, .head_rms = ref_head_rms_##type,                        \
        .head_rms_backward = ref_head_rms_backward_##type,                                         \
        .head_rms_scratch = ref_head_rms_scratch_##type, .add = ref_add_##type,                    \
        .gelu = ref_gelu_##type, .gelu_backward = ref_gelu_backward_##type,                        \
        .gelu_exact = ref_gelu_exact_##type,                                                       \
        .gelu_exact_backward = ref_gelu_exact_backward_##type, .swiglu = ref_swiglu_##type,        \
        .swiglu_backward = ref_swiglu_backward_##type, .geglu = ref_geglu_##type,                  \
        .geglu_backward = ref_geglu_backward_##type, .scale = ref_scale_##type,                    \
        .rope = ref_rope_##type, .attention = ref_attention_##type,                                \
        .attention_backward = ref_attention_backward_##type,                                       \
        .attention_scratch = ref_attention_scratch_##type,                                         \
        .attention_cached = ref_attention_cached_##type, .embedding = ref_embedding_##type,        \
        .embedding_backward = ref_embedding_backward_##type,                                       \
        .embedding_scratch = ref_embedding_scratch_##type,                                         \
        .cross_entropy = ref_cross_entropy_##type,                                                 \
        .cross_entropy_part = ref_cross_entropy_part_##type,                                       \
        .cross_entropy_join = ref_cross_entropy_join_##type, .softcap = ref_softcap_##type,        \
        .mas = ref_mas_##type, .mas_backward = ref_mas_backward_##type, .route = ref_route_##type, \
        .route_backward = ref_route_backward_##type, .route_scratch = ref_route_scratch_##type,    \
        .gate_rows = ref_gate_rows, .sum = ref_sum, .tree_sums = ref_tree_sums, .cast = ref_cast,  \
        .square_sums = ref_square_sums, .find_nonfinite = ref_find_nonfinite,                      \
        .update = ref_update, .orthogonalize = ref_orthogonalize,                                  \
        .orthogonalize_scratch = ref_orthogonalize_scratch                                         \
    }

void ops_ref_fill(struct ops_backend *table, enum dtype type)
{
    static const struct ops_backend f32 = TABLE(f32), f64 = TABLE(f64), bf16 = TABLE(bf16),
                                    f16 = TABLE(f16);
    CHECK(ref_supports(type));
    *table = type == DTYPE_F64 ? f64 : type == DTYPE_BF16 ? bf16 : type == DTYPE_F16 ? f16 : f32;
}
