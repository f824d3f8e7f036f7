/* ops_cpu -- the table of the cpu back end: f32, kernels of our own for products, vectors for the
 * rest.
 *
 * It overrides ref's table slot by slot. `sum` stays ref's, since its contract fixes the order, and
 * so does `mas`, a few hundred numbers for a layer.
 * Each file here implements one family of ops and explains its speed and bits; cpu_impl.h and
 * cpu_vector.h have what they share.
 */
#include <string.h>
#include "ops/cpu/cpu_gemm.h"

static bool cpu_supports(enum dtype type)
{
    return type == DTYPE_F32;
}

/* The workspace is counted whole, so all of it is made resident. */
static enum status cpu_open(struct ops *ops)
{
    memset(ops->workspace, 0, ops->backend->workspace_bytes);
    return cpu_blas_open(ops);
}

const char *cpu_vectors(void)
{
#if defined(__AVX512F__)
    return "AVX-512";
#elif defined(__AVX2__)
    return "AVX2";
#elif defined(__SSE2__)
    return "SSE2";
#elif defined(__ARM_FEATURE_SVE)
    return "SVE and NEON";
#elif defined(__ARM_NEON)
    return "NEON";
#else
    return "none in particular";
#endif
}

void cpu_fill(struct ops_backend *table)
{
    table->name = "cpu";
    table->supports = cpu_supports;
    table->workspace_bytes = cpu_gemm_bytes();
    table->open = cpu_open;
    table->close = cpu_blas_close;
    table->takes_bf16 = cpu_takes_bf16;
    table->linear = cpu_linear;
    table->linear_gelu = cpu_linear_gelu;
    table->linear_dx = cpu_linear_dx;
    table->linear_dx_dgelu = cpu_linear_dx_dgelu;
    table->linear_dw = cpu_linear_dw;
    table->sums_dw = cpu_sums_dw;
    table->linear_dw_sum = cpu_linear_dw_sum;
    table->add_norm = cpu_add_norm;
    table->norm_apply = cpu_norm_apply;
    table->norm_backward = cpu_norm_backward;
    table->norm_scratch = cpu_norm_scratch;
    table->add = cpu_add;
    table->gelu = cpu_gelu;
    table->gelu_backward = cpu_gelu_backward;
    table->head_sums = cpu_head_sums;
    table->head_rms = cpu_head_rms;
    table->head_rms_backward = cpu_head_rms_backward;
    table->head_rms_scratch = cpu_head_rms_scratch;
    table->swiglu = cpu_swiglu;
    table->swiglu_backward = cpu_swiglu_backward;
    table->gelu_exact = cpu_gelu_exact;
    table->gelu_exact_backward = cpu_gelu_exact_backward;
    table->geglu = cpu_geglu;
    table->geglu_backward = cpu_geglu_backward;
    table->scale = cpu_scale;
    table->rope = cpu_rope;
    table->attention = cpu_attention;
    table->attention_backward = cpu_attention_backward;
    table->attention_scratch = cpu_attention_scratch;
    table->attention_cached = cpu_attention_cached;
    table->embedding = cpu_embedding;
    table->embedding_backward = cpu_embedding_backward;
    table->embedding_scratch = cpu_embedding_scratch;
    table->cross_entropy = cpu_cross_entropy;
    table->cross_entropy_part = cpu_cross_entropy_part;
    table->cross_entropy_join = cpu_cross_entropy_join;
    table->softcap = cpu_softcap;
    table->route = cpu_route;
    table->route_backward = cpu_route_backward;
    table->route_scratch = cpu_route_scratch;
    table->gate_rows = cpu_gate_rows;
    table->tree_sums = cpu_tree_sums;
    table->cast = cpu_cast;
    table->square_sums = cpu_square_sums;
    table->find_nonfinite = cpu_find_nonfinite;
    table->update = cpu_update;
    table->orthogonalize = cpu_orthogonalize;
    table->orthogonalize_scratch = cpu_orthogonalize_scratch;
}
