/* op_shapes -- the shapes on which every op is compared with the reference: common ones and odd
 * ones (widths that are no multiple of a vector, one token, one row, grouped heads, odd
 * vocabularies). */
#ifndef TESTS_OPS_OP_SHAPES_H
#define TESTS_OPS_OP_SHAPES_H
#include "ops/ops_cases.h"

#define LINEAR_SHAPES(X)  \
    X(1, 1, 1, false)     \
    X(1, 65, 130, true)   \
    X(3, 64, 1000, false) \
    X(7, 13, 5, false)    \
    X(7, 13, 5, true)     \
    X(67, 100, 96, false) \
    X(67, 100, 96, true)  \
    X(300, 65, 33, false) \
    X(300, 65, 33, true)  \
    X(515, 24, 70, true)

#define LINEAR_CASES(r, i, o, w)                                                            \
    {"linear", .rows = r, .linear = {i, o, .out_in = w}},                                   \
        {"linear", .rows = r, .linear = {i, o, .out_in = w}, .bias = true},                 \
        {"linear_gelu", .rows = r, .linear = {i, o, .out_in = w}, .bias = true},            \
        {"linear_gelu", .rows = r, .linear = {i, o, .out_in = w}},                          \
        {"linear_dx", .rows = r, .linear = {i, o, .out_in = w}},                            \
        {"gelu_linear", .rows = r, .linear = {i, o, .out_in = w}},                          \
        {"linear_dx_dgelu", .rows = r, .linear = {i, o, .out_in = w}},                      \
        {"linear_dx_dgelu", .rows = r, .linear = {i, o, .out_in = w}, .bias = true},        \
        {"linear_dw", .rows = r, .linear = {i, o, .out_in = w}},                            \
        {"linear_dw", .rows = r, .linear = {i, o, .out_in = w}, .bias = true},              \
        {"linear_dw", .rows = r, .linear = {i, o, .out_in = w}, .bias = true, .add = true}, \
        {"linear_dw_sum", .rows = r, .linear = {i, o, .out_in = w}, .bias = true},          \
        {"linear_dw_sum", .rows = r, .linear = {i, o, .out_in = w}, .add = true},

/* Rows of y and dy with a stride: rows, in, out, [out][in], stride */
#define STRIDE_SHAPES(X)      \
    X(1, 64, 13, true, 16)    \
    X(7, 13, 5, false, 9)     \
    X(67, 100, 97, true, 104) \
    X(300, 65, 33, true, 40)  \
    X(300, 65, 33, false, 34) \
    X(515, 24, 70, true, 72)
#define STRIDE_CASES(r, i, o, w, s)                                                              \
    {"linear", .rows = r, .linear = {i, o, .out_in = w, .y_stride = s}},                         \
        {"linear", .rows = r, .linear = {i, o, .out_in = w, .y_stride = s}, .bias = true},       \
        {"linear_dx", .rows = r, .linear = {i, o, .out_in = w, .y_stride = s}},                  \
        {"linear_dx_dgelu", .rows = r, .linear = {i, o, .out_in = w, .y_stride = s},             \
         .bias = true},                                                                          \
        {"linear_dw", .rows = r, .linear = {i, o, .out_in = w, .y_stride = s}},                  \
        {"linear_dw", .rows = r, .linear = {i, o, .out_in = w, .y_stride = s}, .add = true},     \
        {"linear_dw_sum", .rows = r, .linear = {i, o, .out_in = w, .y_stride = s}, .add = true}, \
        {"linear_dw", .rows = r, .linear = {i, o, .out_in = w, .y_stride = s}, .bias = true},

#define NORM_SHAPES(X) \
    X(1, 5)            \
    X(3, 64)           \
    X(33, 100)         \
    X(130, 37)         \
    X(257, 128)

#define NORM_CASES_OF(r, c, k, has_bias, has_branch)                                          \
    {"add_norm", .rows = r, .norm = {k, c, 1e-5, 0}, .bias = has_bias, .branch = has_branch}, \
        {"norm_apply", .rows = r, .norm = {k, c, 1e-5, 0}, .bias = has_bias,                  \
         .branch = has_branch},                                                               \
        {"norm_backward", .rows = r, .norm = {k, c, 1e-5, 0}, .bias = has_bias,               \
         .branch = has_branch},
#define NORM_COLUMNS(r, c, k, has_bias)                         \
    {"norm_backward",  .rows = r,      .norm = {k, c, 1e-5, 0}, \
     .bias = has_bias, .branch = true, .columns = true},
#define NORM_CASES(r, c)                                                        \
    NORM_CASES_OF(r, c, NORM_LAYER, true, true)                                 \
    NORM_COLUMNS(r, c, NORM_LAYER, true)                                        \
    NORM_COLUMNS(r, c, NORM_RMS, false)                                         \
    NORM_CASES_OF(r, c, NORM_LAYER, false, false)                               \
    NORM_CASES_OF(r, c, NORM_RMS, false, true)                                  \
    NORM_CASES_OF(r, c, NORM_RMS, true, false){"add_norm", .rows = r,           \
                                               .norm = {NORM_RMS, c, 1e-5, 1}}, \
        {"norm_apply", .rows = r, .norm = {NORM_RMS, c, 1e-5, 1}},              \
        {"norm_backward", .rows = r, .norm = {NORM_RMS, c, 1e-5, 1}},

#define FLAT_SHAPES(X) X(1) X(63) X(64) X(65) X(1000) X(8200) X(20011)
#define FLAT_CASES(n)                                                                             \
    {"add", .count = n}, {"scale", .count = n}, {"gelu_exact", .count = n},                       \
        {"gelu_exact_backward", .count = n}, {"gelu", .count = n}, {"gelu_backward", .count = n}, \
        {"sum", .count = n}, {"square_sums", .count = n},                                         \
        {"square_sums", .count = n, .from = DTYPE_BF16},                                          \
        {"square_sums", .count = n, .from = DTYPE_F16},                                           \
        {"find_nonfinite", .count = n, .bad = n - 1, .from = DTYPE_BF16},                         \
        {"find_nonfinite", .count = n, .bad = -1, .from = DTYPE_F16},                             \
        {"find_nonfinite", .count = n, .bad = -1}, {"find_nonfinite", .count = n, .bad = n - 1},  \
        {"find_nonfinite", .count = n, .bad = n / 2}, {"find_nonfinite", .count = n, .bad = 0},   \
        {"cast", .count = n, .from = DTYPE_F32, .to = DTYPE_BF16},                                \
        {"cast", .count = n, .from = DTYPE_F32, .to = DTYPE_F16},                                 \
        {"cast", .count = n, .from = DTYPE_F32, .to = DTYPE_F64},                                 \
        {"cast", .count = n, .from = DTYPE_F32, .to = DTYPE_F32},                                 \
        {"cast", .count = n, .from = DTYPE_BF16, .to = DTYPE_F32},                                \
        {"cast", .count = n, .from = DTYPE_F16, .to = DTYPE_F32},                                 \
        {"cast", .count = n, .from = DTYPE_F64, .to = DTYPE_F32},

#define UPDATE_TYPES(X, n)  \
    X(n, F32, F32, false)   \
    X(n, F32, BF16, false)  \
    X(n, F32, F16, false)   \
    X(n, BF16, BF16, false) \
    X(n, F16, F32, false)   \
    X(n, F32, BF16, true)   \
    X(n, F16, F16, true)
#define RULE_CASES(n, f, t, r)                                                                  \
    {"adamw", .count = n, .from = DTYPE_##f, .to = DTYPE_##t, .random = r},                     \
        {"adamw8", .count = n, .from = DTYPE_##f, .to = DTYPE_##t, .random = r},                \
        {"sgd", .count = n, .from = DTYPE_##f, .to = DTYPE_##t, .random = r},                   \
        {"sgd", .count = n, .from = DTYPE_##f, .to = DTYPE_##t, .random = r, .momentum = true}, \
        {"sgd",       .count = n,       .from = DTYPE_##f, .to = DTYPE_##t,                     \
         .random = r, .momentum = true, .nesterov = true},                                      \
        {"muon", .count = n, .from = DTYPE_##f, .to = DTYPE_##t},                               \
        {"muon", .count = n, .from = DTYPE_##f, .to = DTYPE_##t, .nesterov = true},             \
        {"apply", .count = n, .from = DTYPE_##f, .to = DTYPE_##t, .random = r},
#define UPDATE_CASES(n) UPDATE_TYPES(RULE_CASES, n)

#define GATE_SHAPES(X)  X(1, 3) X(5, 64) X(17, 100) X(300, 257)
#define GATE_CASES(r, f)                                                                           \
    {"swiglu", .rows = r, .width = f}, {"swiglu_backward", .rows = r, .width = f},                 \
        {"swiglu_backward", .rows = r, .width = f, .act = true}, {"geglu", .rows = r, .width = f}, \
        {"geglu_backward", .rows = r, .width = f},                                                 \
        {"geglu_backward", .rows = r, .width = f, .act = true},

/* Rows, heads, key/value heads, head width; with one norm for all heads on as many ranks */
#define HEAD_SHAPES(X) X(1, 1, 1, 2, 3) X(5, 4, 2, 16, 1) X(37, 6, 2, 10, 2) X(300, 3, 1, 65, 1)
#define HEAD_OPS(r, h, g, d, ...)                                                          \
    {"head_sums", .attention = OPS_HEADS(1, r, h, g, d), __VA_ARGS__},                     \
        {"head_sums", .attention = OPS_HEADS(1, r, h, g, d), .branch = true, __VA_ARGS__}, \
        {"head_rms", .attention = OPS_HEADS(1, r, h, g, d), __VA_ARGS__},                  \
        {"head_rms_backward", .attention = OPS_HEADS(1, r, h, g, d), __VA_ARGS__},
#define HEAD_CASES(r, h, g, d, n)       \
    HEAD_OPS(r, h, g, d, .bias = false) \
    HEAD_OPS(r, h, g, d, .bias = true)  \
    HEAD_OPS(r, h, g, d, .width = h * n)

#define ATTENTION_SHAPES(X) \
    X(1, 1, 1, 1, 2)        \
    X(2, 1, 4, 2, 8)        \
    X(2, 37, 4, 2, 16)      \
    X(1, 64, 2, 2, 64)      \
    X(3, 19, 6, 2, 10)      \
    X(1, 130, 3, 1, 48)     \
    X(1, 70, 2, 1, 96)      \
    X(1, 300, 2, 1, 32)
#define BACKWARD_CASES(b, t, h, g, d)                                                \
    {"attention_backward", .attention = OPS_HEADS(b, t, h, g, d)},                   \
        {"attention_backward", .attention = OPS_HEADS(b, t, h, g, d), .bias = true}, \
        {"attention_backward_rope", .attention = OPS_HEADS(b, t, h, g, d)},
#define ATTENTION_CASES(b, t, h, g, d)                                                        \
    BACKWARD_CASES(b, t, h, g, d){"rope", .attention = OPS_HEADS(b, t, h, g, d), .first = 3}, \
        {"rope_inverse", .attention = OPS_HEADS(b, t, h, g, d), .first = 3},                  \
        {"rope", .attention = OPS_HEADS(b, t, h, g, d)},                                      \
        {"attention", .attention = OPS_HEADS(b, t, h, g, d)},                                 \
        {"attention_cached", .attention = OPS_HEADS(b, t, h, g, d), .past = 0, .room = t},    \
        {"attention_cached", .attention = OPS_HEADS(b, t, h, g, d), .past = 21, .room = t + 30},

/* Products with SwiGLU: rows, C, F, [out][in] */
#define SWIGLU_SHAPES(X) \
    X(1, 3, 1, false)    \
    X(1, 64, 40, true)   \
    X(7, 13, 5, true)    \
    X(67, 96, 72, false) \
    X(300, 33, 65, true)
#define SWIGLU_CASES(r, c, f, w)                                                      \
    {"linear_swiglu", .rows = r, .linear = {c, 2 * f, .out_in = w}},                  \
        {"linear_swiglu", .rows = r, .linear = {c, 2 * f, .out_in = w}, .act = true}, \
        {"linear_swiglu", .rows = r, .linear = {c, 2 * f, .out_in = w}, .bias = true, \
         .act = true},                                                                \
        {"swiglu_linear", .rows = r, .linear = {f, c, .out_in = w}},                  \
        {"linear_dx_dswiglu", .rows = r, .linear = {f, c, .out_in = w}},              \
        {"linear_dx_dswiglu", .rows = r, .linear = {f, c, .out_in = w, .y_stride = c + 3}},

/* Windows smaller than a tile, around tiles, larger than T; caps that scores reach and that they do
 * not; scales. Positions, then window, scale, cap. */
#define WINDOW_SHAPES(X)                  \
    X(1, 5, 2, 1, 4, 1, 0, 0)             \
    X(2, 37, 4, 2, 16, 5, 0, 0)           \
    X(3, 19, 6, 2, 10, 18, 0, 2)          \
    X(1, 130, 3, 1, 48, 64, 0.25, 0)      \
    X(1, 70, 2, 1, 96, 200, 0.0625, 0.75) \
    X(1, 300, 2, 1, 32, 37, 0, 1.5)       \
    X(1, 300, 2, 1, 32, 257, 0, 0)        \
    X(1, 150, 2, 1, 256, 0, 0.0625, 50)   \
    X(1, 140, 2, 2, 256, 65, 0, 1)        \
    X(2, 37, 4, 2, 16, 0, 0.5, 0)
#define OPS_WINDOW(b, t, h, g, d, w, s, c)                                                \
    {                                                                                     \
        .batch = b, .tokens = t, .heads = h, .kv_heads = g, .head_width = d, .window = w, \
        .scale = s, .cap = c                                                              \
    }
#define WINDOW_CASES(b, t, h, g, d, w, s, c)                                                   \
    {"attention", .attention = OPS_WINDOW(b, t, h, g, d, w, s, c)},                            \
        {"attention_backward", .attention = OPS_WINDOW(b, t, h, g, d, w, s, c)},               \
        {"attention_backward", .attention = OPS_WINDOW(b, t, h, g, d, w, s, c), .bias = true}, \
        {"attention_backward_rope", .attention = OPS_WINDOW(b, t, h, g, d, w, s, c)},          \
        CACHED_CASES(0, t, b, t, h, g, d, w, s, c)                                             \
            CACHED_CASES(21, t + 30, b, t, h, g, d, w, s, c)
#define CACHED_CASES(p, r, ...) \
    {"attention_cached", .attention = OPS_WINDOW(__VA_ARGS__), .past = p, .room = r},

/* Heads of which only the first columns are rotated */
#define ROTARY(b, t, h, g, d, r)                                                         \
    {                                                                                    \
        .batch = b, .tokens = t, .heads = h, .kv_heads = g, .head_width = d, .rotary = r \
    }
#define ROTARY_CASES(...)                                               \
    {"rope", .attention = ROTARY(__VA_ARGS__), .first = 3},             \
        {"rope_inverse", .attention = ROTARY(__VA_ARGS__), .first = 3}, \
        {"attention_backward_rope", .attention = ROTARY(__VA_ARGS__)},
#define ROTARY_SHAPES(X)   \
    X(1, 1, 1, 1, 4, 2)    \
    X(2, 37, 4, 2, 16, 4)  \
    X(1, 40, 2, 1, 96, 72) \
    X(1, 65, 2, 1, 64, 32) \
    X(3, 19, 6, 2, 10, 10)

/* Rows, vocabulary, stride (0: dense) */
#define LOSS_SHAPES(X) \
    X(1, 7, 0)         \
    X(9, 64, 0)        \
    X(21, 1001, 0)     \
    X(6, 513, 0)       \
    X(80, 300, 0)      \
    X(1, 7, 8)         \
    X(21, 1001, 1008)  \
    X(6, 513, 515)     \
    X(80, 300, 304)
#define LOSS_CASES(r, v, s)                                             \
    {"cross_entropy", .rows = r, .width = v, .stride = s},              \
        {"cross_entropy_gradient", .rows = r, .width = v, .stride = s}, \
        {"cross_entropy_part", .rows = r, .width = v, .stride = s},     \
        {"cross_entropy_parts", .rows = r, .width = v, .stride = s},    \
        {"cross_entropy_join", .rows = r, .width = v, .stride = s},

/* With caps that many logits reach, and that none does */
#define CAP_CASES(r, v, s, c)                                                     \
    {"cross_entropy", .rows = r, .width = v, .stride = s, .cap = c},              \
        {"cross_entropy_gradient", .rows = r, .width = v, .stride = s, .cap = c}, \
        {"cross_entropy_part", .rows = r, .width = v, .stride = s, .cap = c},     \
        {"cross_entropy_parts", .rows = r, .width = v, .stride = s, .cap = c},    \
        {"cross_entropy_join", .rows = r, .width = v, .stride = s, .cap = c},     \
        {"softcap", .count = r * v, .cap = c},
#define CAP_SHAPES(X)    X(1, 7, 0, 1.5) X(21, 1001, 1008, 30) X(6, 2050, 0, 2) X(80, 300, 304, 3)

#define TREE_SHAPES(X)   X(1, 0) X(6, 1) X(64, 3) X(96, 5) X(1024, 10) X(24576, 12) X(5000, 0)
#define TREE_CASES(n, l) {"tree_sums", .count = n, .level = l},

/* Square, wide, tall; the last two have several tiles on the CPU. */
#define MATRIX_SHAPES(X) \
    X(1, 1)              \
    X(1, 70)             \
    X(70, 1)             \
    X(13, 5)             \
    X(5, 13)             \
    X(48, 48)            \
    X(64, 192)           \
    X(192, 64)           \
    X(100, 33)           \
    X(150, 300)          \
    X(300, 150)
#define MATRIX_CASES(r, w) {"orthogonalize", .rows = r, .width = w},

#define MAS_SHAPES(X)      X(1, 2) X(1, 5) X(4, 64) X(3, 1001)
#define MAS_CASES(k, c)                                                      \
    {"mas", .routing = {0, k, c, false, false}},                             \
        {"mas", .routing = {0, k, c, false, false}, .zeros = true},          \
        {"mas", .routing = {0, k, c, false, false}, .ties = true},           \
        {"mas_backward", .routing = {0, k, c, false, false}},                \
        {"mas_backward", .routing = {0, k, c, false, false}, .zeros = true}, \
        {"mas_backward", .routing = {0, k, c, false, false}, .ties = true},

/* Rows, inputs, groups, width */
#define ROUTE_SHAPES(X) \
    X(1, 3, 1, 2)       \
    X(3, 64, 3, 64)     \
    X(33, 20, 1, 100)   \
    X(130, 37, 3, 37)   \
    X(40, 200, 2, 515)  \
    X(257, 128, 1, 128)
#define ROUTE_CASES(r, i, k, c)                                                          \
    {"route", .rows = r, .routing = {i, k, c, false, false}},                            \
        {"route_backward", .rows = r, .routing = {i, k, c, false, false}},               \
        {"route_backward", .rows = r, .routing = {i, k, c, true, false}, .zeros = true}, \
        {"route_backward", .rows = r, .routing = {i, k, c, true, true}},

/* Elements, the first one, columns; 0: no goodness */
#define ROWS_SHAPES(X) X(1, 0, 1) X(63, 5, 7) X(1000, 0, 0) X(8200, 777, 100) X(20011, 3, 20000)
#define ROWS_CASES(n, f, c)                                                    \
    {"gate_rows", .count = n, .first = f, .width = c},                         \
        {"gate_rows", .count = n, .first = f, .width = c, .from = DTYPE_BF16}, \
        {"gate_rows", .count = n, .first = f, .width = c, .from = DTYPE_F16},

static const struct ops_case op_shapes[] = {
    LINEAR_SHAPES(LINEAR_CASES) STRIDE_SHAPES(STRIDE_CASES) NORM_SHAPES(NORM_CASES)
        FLAT_SHAPES(FLAT_CASES) FLAT_SHAPES(UPDATE_CASES) GATE_SHAPES(GATE_CASES)
            SWIGLU_SHAPES(SWIGLU_CASES) HEAD_SHAPES(HEAD_CASES) ATTENTION_SHAPES(ATTENTION_CASES)
                WINDOW_SHAPES(WINDOW_CASES) ROTARY_SHAPES(ROTARY_CASES) TREE_SHAPES(TREE_CASES)
                    MATRIX_SHAPES(MATRIX_CASES) MAS_SHAPES(MAS_CASES) ROUTE_SHAPES(ROUTE_CASES)
                        ROWS_SHAPES(ROWS_CASES) CAP_SHAPES(CAP_CASES) LOSS_SHAPES(LOSS_CASES){
                            "rope_attention", .attention = OPS_HEADS(1, 300, 2, 1, 32)},
    {"attention_backward_rope", .attention = OPS_HEADS(2, 37, 4, 2, 16), .bias = true},
    {"rope", .attention = OPS_HEADS(1, 1, 4, 2, 16), .first = 9, .at = true},
    {"attention_cached", .attention = OPS_HEADS(1, 1, 4, 2, 16), .past = 0, .room = 7, .at = true},
    {"attention_cached", .attention = OPS_HEADS(2, 3, 6, 2, 10), .past = 40, .room = 90,
     .at = true},
    {"attention_cached", .attention = OPS_HEADS(1, 1, 2, 1, 64), .past = 130, .room = 200,
     .at = true},
    CACHED_CASES(130, 200, 2, 1, 4, 2, 64, 33, 0, 0) CACHED_CASES(40, 90, 2, 3, 6, 2, 10, 17, 0, 3)
        CACHED_CASES(290, 300, 1, 1, 2, 1, 128, 250, 0.125,
                     2){"attention_cached", .attention = OPS_WINDOW(1, 1, 2, 1, 64, 70, 0, 0),
                        .past = 130, .room = 200, .at = true},
    {"embedding", .embedding = {1, 1, 20, 11, 16, 0, 0, false}, .first = 4, .at = true},
    {"embedding", .embedding = {1, 1, 5, 3, 0, 0, 0, false}},
    {"embedding_backward", .embedding = {1, 1, 5, 3, 0, 0, 0, false}},
    {"embedding", .embedding = {2, 9, 20, 11, 16, 0, 0, false}, .first = 4},
    {"embedding", .embedding = {3, 17, 64, 1001, 17, 0, 0, false}},
    {"embedding", .embedding = {2, 150, 40, 50, 200, 0, 0, false}, .first = 7},
    {"embedding_backward", .embedding = {2, 9, 20, 11, 16, 0, 0, false}},
    {"embedding_backward", .embedding = {3, 17, 64, 1001, 17, 0, 0, false}},
    {"embedding_backward", .embedding = {4, 50, 33, 7, 64, 0, 0, false}},
    {"embedding", .embedding = {2, 9, 20, 11, 16, 7, 30, false}, .first = 4},
    {"embedding", .embedding = {3, 17, 64, 10, 0, 0, 1000, false}},
    {"embedding_backward", .embedding = {2, 9, 20, 11, 16, 7, 30, false}},
    {"embedding_backward", .embedding = {4, 50, 33, 7, 64, 3, 10, false}},
    {"embedding_backward", .embedding = {3, 17, 64, 300, 17, 256, 600, false}},
};
enum { OP_SHAPE_COUNT = sizeof op_shapes / sizeof op_shapes[0] };

#endif
