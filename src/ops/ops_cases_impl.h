/* ops_cases_impl -- the list of described ops and what their descriptions share; for src/ops
 * only. */
#ifndef OPS_OPS_CASES_IMPL_H
#define OPS_OPS_CASES_IMPL_H
#include "ops/ops_cases.h"

/*    op, forward op, bound of the relative error in f32 */
#define OPS_LIST(X)                                    \
    X(linear, NULL, 2e-6)                              \
    X(linear_gelu, NULL, 2e-6)                         \
    X(linear_dx, "linear", 2e-6)                       \
    X(gelu_linear, NULL, 2e-6)                         \
    X(linear_dx_dgelu, "gelu_linear", 2e-6)            \
    X(linear_swiglu, NULL, 2e-6)                       \
    X(swiglu_linear, NULL, 2e-6)                       \
    X(linear_dx_dswiglu, "swiglu_linear", 2e-6)        \
    X(linear_dw, "linear", 2e-6)                       \
    X(linear_dw_sum, NULL, 2e-6)                       \
    X(add_norm, NULL, 1e-6)                            \
    X(norm_apply, "add_norm", 1e-6)                    \
    X(norm_backward, "add_norm", 2e-6)                 \
    X(head_sums, NULL, 1e-6)                           \
    X(head_rms, NULL, 1e-6)                            \
    X(head_rms_backward, "head_rms", 2e-6)             \
    X(add, NULL, 1e-6)                                 \
    X(gelu, NULL, 1e-6)                                \
    X(gelu_backward, "gelu", 1e-6)                     \
    X(gelu_exact, NULL, 1e-6)                          \
    X(gelu_exact_backward, "gelu_exact", 1e-6)         \
    X(swiglu, NULL, 1e-6)                              \
    X(swiglu_backward, "swiglu", 1e-6)                 \
    X(geglu, NULL, 1e-6)                               \
    X(geglu_backward, "geglu", 1e-6)                   \
    X(scale, NULL, 1e-6)                               \
    X(rope, NULL, 1e-6)                                \
    X(rope_inverse, "rope", 1e-6)                      \
    X(attention, NULL, 2e-6)                           \
    X(attention_backward, "attention", 4e-6)           \
    X(rope_attention, NULL, 2e-6)                      \
    X(attention_backward_rope, "rope_attention", 4e-6) \
    X(attention_cached, NULL, 2e-6)                    \
    X(embedding, NULL, 1e-6)                           \
    X(embedding_backward, "embedding", 1e-6)           \
    X(cross_entropy, NULL, 1e-6)                       \
    X(cross_entropy_gradient, "cross_entropy", 2e-6)   \
    X(cross_entropy_part, NULL, 1e-6)                  \
    X(cross_entropy_parts, NULL, 1e-6)                 \
    X(cross_entropy_join, "cross_entropy_parts", 2e-6) \
    X(softcap, NULL, 1e-6)                             \
    X(mas, NULL, 1e-6)                                 \
    X(mas_backward, "mas", 1e-6)                       \
    X(route, NULL, 1e-6)                               \
    X(route_backward, "route", 4e-6)                   \
    X(gate_rows, NULL, 0)                              \
    X(sum, NULL, 0)                                    \
    X(tree_sums, NULL, 0)                              \
    X(cast, NULL, 0)                                   \
    X(square_sums, NULL, 0)                            \
    X(find_nonfinite, NULL, 0)                         \
    X(adamw, NULL, 0)                                  \
    X(adamw8, NULL, 0)                                 \
    X(sgd, NULL, 0)                                    \
    X(muon, NULL, 0)                                   \
    X(apply, NULL, 0)                                  \
    X(orthogonalize, NULL, 4e-6)

/* Each op has two functions: ops_describe_x lists its tensors, ops_run_x calls the face with
 * them. */
#define OPS_DESCRIBE(op) \
    void ops_describe_##op(const struct ops *ops, const struct ops_case *c, struct ops_call *call)
#define OPS_RUN(op)                                                                     \
    void ops_run_##op(struct ops *ops, struct stream *stream, const struct ops_case *c, \
                      const struct ops_call *call)
#define X(op, forward, bound) \
    OPS_DESCRIBE(op);         \
    OPS_RUN(op);
OPS_LIST(X)
#undef X

/* Append a tensor. Its values are normally distributed unless the caller changes `draw`. */
struct ops_tensor *ops_add_tensor(struct ops_call *call, const char *name, enum ops_role role,
                                  enum dtype type, int64_t count);
/* The same with `rows` rows of `width` elements; stride 0: dense. */
struct ops_tensor *ops_add_rows(struct ops_call *call, const char *name, enum ops_role role,
                                enum dtype type, int64_t rows, int64_t width, int64_t stride);
void ops_add_scratch(struct ops_call *call, size_t bytes);
/* With c->at, append the tensor "past" with the value `count`; and the struct past of a call. */
void ops_add_past(struct ops_call *call, const struct ops_case *c, int64_t count);
struct past ops_past(const struct ops_call *call, int64_t count);
/* The data of a tensor, or NULL if it is not listed. */
void *ops_at(const struct ops_call *call, const char *name);
/* In the initializer of an op's arguments: the field gets the tensor of the same name. */
#define OPS_AT(name) .name = ops_at(call, #name)

#endif
