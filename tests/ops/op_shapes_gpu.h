/* op_shapes_gpu -- more shapes for a GPU: those of its fast paths (widths that are multiples of
 * eight, heads of 64 and 128, several blocks in every direction), small enough for the
 * reference. */
#ifndef TESTS_OPS_OP_SHAPES_GPU_H
#define TESTS_OPS_OP_SHAPES_GPU_H
#include "ops/op_shapes.h"

#define GPU_LINEAR_SHAPES(X) \
    X(256, 192, 320, false)  \
    X(256, 320, 192, true)   \
    X(129, 768, 64, false)   \
    X(40, 1024, 136, true)   \
    X(1, 512, 512, false)    \
    X(1, 768, 2304, false)   \
    X(1, 3072, 768, false)   \
    X(1, 5000, 40, false)    \
    X(1, 77, 24, false)      \
    X(1, 768, 1030, true)    \
    X(1, 3000, 9001, true)   \
    X(1, 2048, 5120, true)   \
    X(1, 77, 24, true)       \
    X(640, 8, 16, true)      \
    X(9000, 24, 264, false)

/* For products with a GELU on Hopper: several tiles for every block, parts of tiles at both ends. */
#define GPU_GELU_SHAPES(X)    \
    X(13000, 72, 520, false)  \
    X(13000, 520, 72, false)  \
    X(11000, 264, 136, true)  \
    X(11000, 136, 264, true)  \
    X(191, 1000, 1160, false) \
    X(193, 1160, 1000, true)  \
    X(2049, 264, 3072, false) \
    X(2049, 3072, 264, true)
#define GELU_CASES(r, i, o, w)                                               \
    {"linear_gelu", .rows = r, .linear = {i, o, .out_in = w}, .bias = true}, \
        {"linear_gelu", .rows = r, .linear = {i, o, .out_in = w}},           \
        {"linear_dx_dgelu", .rows = r, .linear = {i, o, .out_in = w}},       \
        {"linear_dx_dgelu", .rows = r, .linear = {i, o, .out_in = w}, .bias = true},

/* For products with SwiGLU on Hopper, likewise; halves that end within a box of 64 columns. */
#define GPU_SWIGLU_SHAPES(X)  \
    X(13000, 72, 264, true)   \
    X(11000, 264, 136, false) \
    X(640, 8, 8, true)        \
    X(191, 1000, 520, true)   \
    X(193, 520, 1000, false)  \
    X(2049, 264, 1536, true)  \
    X(2049, 1536, 200, true)

/* Our own weight gradients take these: several waves of tiles, odd counts of tiles, few tokens */
#define GPU_DW_SHAPES(X)      \
    X(2049, 1536, 1032, true) \
    X(1030, 200, 5000, false) \
    X(60, 2056, 776, true)    \
    X(9, 8, 16, true)
#define DW_CASES(r, i, o, w)                                         \
    {"linear_dw", .rows = r, .linear = {i, o, .out_in = w}},         \
        {"linear_dw_sum", .rows = r, .linear = {i, o, .out_in = w}}, \
        {"linear_dw_sum", .rows = r, .linear = {i, o, .out_in = w}, .add = true},

/* The last five: several rows for every warp or block of the backward pass. */
#define GPU_NORM_SHAPES(X) \
    X(130, 768)            \
    X(1, 768)              \
    X(1, 1600)             \
    X(1, 3072)             \
    X(1, 8192)             \
    X(67, 1024)            \
    X(33, 1600)            \
    X(9, 3072)             \
    X(5, 8192)             \
    X(700, 64)             \
    X(5000, 768)           \
    X(3500, 1280)          \
    X(1500, 2048)          \
    X(2200, 2560)          \
    X(1100, 5120)

#define GPU_FLAT_SHAPES(X) X(4096) X(262144) X(300008)

#define GPU_HEAD_SHAPES(X) X(130, 8, 2, 128, 1) X(1, 16, 8, 64, 2) X(2000, 4, 4, 256, 1)

#define GPU_GATE_SHAPES(X) X(130, 512) X(9, 5632)

#define GPU_ATTENTION_SHAPES(X) \
    X(2, 128, 4, 4, 64)         \
    X(1, 256, 4, 2, 64)         \
    X(2, 512, 4, 2, 64)         \
    X(2, 200, 4, 1, 64)         \
    X(2, 128, 4, 2, 128)        \
    X(1, 256, 4, 2, 128)        \
    X(2, 512, 4, 2, 128)        \
    X(1, 192, 2, 1, 128)        \
    X(1, 321, 3, 3, 128)

/* Lengths that are no multiple of a tile, around its edges, and heads narrower than a tile. */
#define GPU_ODD_SHAPES(X) \
    X(3, 1, 2, 1, 64)     \
    X(3, 7, 2, 2, 128)    \
    X(1, 63, 2, 1, 64)    \
    X(3, 65, 3, 3, 64)    \
    X(3, 100, 4, 2, 32)   \
    X(1, 127, 2, 1, 128)  \
    X(3, 129, 2, 1, 40)   \
    X(2, 129, 2, 2, 128)  \
    X(1, 193, 4, 2, 80)   \
    X(3, 191, 2, 1, 96)   \
    X(1, 257, 4, 1, 104)  \
    X(3, 250, 3, 3, 120)  \
    X(1, 128, 2, 1, 8)    \
    X(2, 256, 4, 2, 32)   \
    X(2, 384, 4, 4, 88)   \
    X(2, 449, 4, 2, 64)   \
    X(2, 500, 4, 2, 128)  \
    X(2, 140, 4, 2, 100)  \
    X(1, 128, 2, 1, 60)   \
    X(3, 77, 2, 2, 30)

/* Heads wider than 128, and every tile width for heads, completely and partly filled. */
#define GPU_WIDE_SHAPES(X) \
    X(2, 65, 2, 1, 136)    \
    X(1, 129, 3, 3, 160)   \
    X(1, 100, 2, 2, 192)   \
    X(2, 33, 4, 2, 200)    \
    X(1, 250, 2, 1, 256)   \
    X(1, 128, 2, 1, 256)   \
    X(3, 300, 4, 2, 160)   \
    X(2, 200, 2, 1, 256)   \
    X(2, 31, 2, 1, 150)    \
    X(1, 17, 2, 2, 254)    \
    X(1, 40, 2, 1, 264)

/* Windows in the kernels of Hopper GPUs (widths up to 128 without a cap) and in those of other
 * GPUs: within a tile, at the edges of tiles, over several of them; each tile width with a cap. */
#define GPU_WINDOW_SHAPES(X)              \
    X(2, 512, 4, 2, 64, 1, 0, 0)          \
    X(2, 512, 4, 2, 64, 64, 0, 0)         \
    X(1, 500, 4, 2, 64, 129, 0, 0)        \
    X(1, 1000, 2, 1, 64, 300, 0.25, 0)    \
    X(3, 449, 3, 3, 64, 2, 0, 0)          \
    X(2, 512, 4, 2, 128, 1, 0, 0)         \
    X(2, 512, 4, 2, 128, 127, 0, 0)       \
    X(1, 500, 4, 2, 128, 128, 0, 0)       \
    X(1, 1000, 2, 1, 128, 383, 0.0625, 0) \
    X(33, 300, 3, 3, 128, 100, 0, 0)      \
    X(33, 321, 3, 3, 64, 190, 0, 0)       \
    X(1, 1100, 7, 1, 64, 257, 0, 0)       \
    X(1, 1150, 2, 2, 128, 640, 0, 0)      \
    X(70, 600, 2, 2, 64, 130, 0, 0)       \
    X(70, 513, 2, 2, 128, 65, 0, 0)       \
    X(1, 900, 6, 2, 32, 899, 0, 0)        \
    X(1, 1030, 3, 1, 112, 250, 0, 0)      \
    X(2, 250, 4, 2, 96, 77, 0, 0)         \
    X(2, 140, 4, 2, 100, 30, 0, 0)        \
    X(2, 256, 4, 2, 64, 0, 0.5, 0)        \
    X(2, 256, 4, 2, 128, 0, 0.25, 0)      \
    X(1, 200, 2, 1, 60, 0, 0.25, 2)       \
    X(1, 250, 4, 2, 128, 0, 0.0625, 50)   \
    X(2, 250, 4, 2, 128, 50, 0, 1)        \
    X(1, 129, 2, 2, 160, 0, 0, 1)         \
    X(1, 250, 4, 2, 256, 0, 0.0625, 50)   \
    X(1, 250, 4, 2, 256, 100, 0.0625, 1)  \
    X(1, 300, 4, 2, 256, 128, 0.0625, 0)  \
    X(1, 700, 4, 2, 256, 300, 0.0625, 50) \
    X(1, 600, 4, 1, 256, 512, 0.0625, 0)  \
    X(1, 60, 2, 1, 264, 20, 0, 1)

#define GPU_ROTARY_SHAPES(X) \
    X(2, 200, 4, 2, 128, 64) X(2, 200, 4, 2, 128, 96) X(1, 129, 2, 2, 80, 20)

#define GPU_TREE_SHAPES(X) X(65536, 8) X(1048576, 15)

/* Logits of odd vocabularies, whose rows start at multiples of 16 bytes in 16 bit, or do not. */
#define GPU_STRIDE_SHAPES(X)       \
    X(256, 192, 1001, true, 1008)  \
    X(129, 64, 10007, true, 10008) \
    X(40, 136, 3003, false, 3008)  \
    X(64, 96, 515, true, 518)

/* Several rows for every block from (900, 12312) on; V over 57344 is too wide for the kernel of
 * Hopper GPUs. */
#define GPU_LOSS_SHAPES(X) \
    X(33, 8192, 0)         \
    X(3, 50257, 0)         \
    X(5, 50304, 0)         \
    X(5, 50257, 50264)     \
    X(7, 34330, 34336)     \
    X(5, 32003, 32008)     \
    X(9, 10007, 10010)     \
    X(3, 60001, 60008)     \
    X(900, 12312, 0)       \
    X(900, 12307, 12312)   \
    X(300, 50304, 0)       \
    X(300, 50257, 50264)

#define GPU_CAP_SHAPES(X) X(5, 50304, 0, 30) X(9, 10007, 10010, 2) X(3, 262144, 0, 30)

/* Every number of values per thread, of a warp and of a block, completely and partly filled, in
 * packs and, at widths that are not multiples of 8, in single elements; several rows for each. With
 * 792 groups one block computes all rows of a group, more than it computes norms of at once. */
#define GPU_ROUTE_SHAPES(X) \
    X(1500, 256, 3, 256)    \
    X(200, 21, 792, 8)      \
    X(700, 512, 1, 512)     \
    X(9, 504, 3, 504)       \
    X(50, 300, 2, 301)      \
    X(300, 768, 3, 768)     \
    X(70, 770, 1, 770)      \
    X(600, 1024, 1, 1024)   \
    X(40, 1536, 1, 1536)    \
    X(33, 2048, 1, 2048)    \
    X(20, 100, 2, 3000)     \
    X(3, 64, 1, 5000)       \
    X(5, 40, 1, 9001)       \
    X(2, 64, 1, 16384)
#define GPU_MAS_SHAPES(X)  X(4, 512) X(2, 5000)
#define GPU_ROWS_SHAPES(X) X(262144, 4096, 512) X(300008, 64, 504) X(300008, 0, 0)

static const struct ops_case op_shapes_gpu[] = {
    GPU_LINEAR_SHAPES(LINEAR_CASES) GPU_GELU_SHAPES(GELU_CASES) GPU_SWIGLU_SHAPES(SWIGLU_CASES)
        GPU_DW_SHAPES(DW_CASES) GPU_STRIDE_SHAPES(STRIDE_CASES) GPU_NORM_SHAPES(NORM_CASES)
            GPU_FLAT_SHAPES(FLAT_CASES) GPU_FLAT_SHAPES(UPDATE_CASES) GPU_GATE_SHAPES(
                GATE_CASES) GPU_HEAD_SHAPES(HEAD_CASES) GPU_ATTENTION_SHAPES(ATTENTION_CASES)
                GPU_ODD_SHAPES(ATTENTION_CASES) GPU_WIDE_SHAPES(ATTENTION_CASES) GPU_WINDOW_SHAPES(
                    WINDOW_CASES) GPU_ROTARY_SHAPES(ROTARY_CASES) GPU_TREE_SHAPES(TREE_CASES)
                    GPU_ROUTE_SHAPES(ROUTE_CASES) GPU_MAS_SHAPES(MAS_CASES)
                        GPU_ROWS_SHAPES(ROWS_CASES) GPU_LOSS_SHAPES(LOSS_CASES){
                            "embedding", .embedding = {2, 128, 768, 1000, 128, 0, 0, false}},
    {"embedding", .embedding = {3, 65, 256, 5000, 0, 0, 0, false}},
    {"embedding_backward", .embedding = {2, 128, 768, 1000, 128, 0, 0, false}},
    {"embedding_backward", .embedding = {3, 65, 256, 5000, 0, 0, 0, false}},
    {"embedding_backward", .embedding = {8, 128, 64, 3, 200, 0, 0, false}},
    {"embedding", .embedding = {2, 128, 768, 500, 128, 300, 1000, false}},
    {"embedding_backward", .embedding = {2, 128, 768, 500, 128, 300, 1000, false}},
    {"embedding_backward", .embedding = {8, 128, 64, 2, 200, 1, 3, false}},
    {"attention_cached", .attention = OPS_HEADS(1, 1, 4, 4, 64), .past = 0, .room = 40},
    {"attention_cached", .attention = OPS_HEADS(2, 1, 6, 2, 64), .past = 511, .room = 600},
    {"attention_cached", .attention = OPS_HEADS(2, 1, 6, 2, 64), .past = 512, .room = 600,
     .at = true},
    {"attention_cached", .attention = OPS_HEADS(1, 1, 2, 1, 64), .past = 2500, .room = 2600},
    {"attention_cached", .attention = OPS_HEADS(1, 1, 6, 2, 128), .past = 95, .room = 300,
     .at = true},
    {"attention_cached", .attention = OPS_HEADS(1, 1, 2, 2, 128), .past = 700, .room = 1024},
    {"attention_cached", .attention = OPS_HEADS(300, 1, 4, 2, 128), .past = 100, .room = 120},
    {"attention_cached", .attention = OPS_HEADS(3, 1, 4, 1, 32), .past = 1023, .room = 1024},
    CACHED_CASES(2500, 2600, 1, 1, 4, 2, 64, 1000, 0, 0)
        CACHED_CASES(2500, 2600, 1, 1, 4, 2, 128, 33, 0, 2)
            CACHED_CASES(2500, 2600, 1, 1, 4, 2, 256, 500, 0.0625, 50){
                "attention_cached", .attention = OPS_WINDOW(2, 1, 6, 2, 128, 300, 0, 0),
                .past = 512, .room = 600, .at = true},
    {"attention_backward",
     .attention = OPS_HEADS(33, 384, 3, 3, 64)}, /* enough heads for one a block */
    {"attention_backward", .attention = OPS_HEADS(33, 256, 3, 3, 128)},
    {"attention_backward", .attention = OPS_HEADS(33, 384, 3, 3, 64), .bias = true},
    {"attention_backward", .attention = OPS_HEADS(33, 256, 3, 3, 128), .bias = true},
    {"attention_backward_rope", .attention = OPS_HEADS(2, 128, 4, 4, 64), .bias = true},
    {"attention_backward_rope", .attention = OPS_HEADS(33, 384, 3, 3, 64)},
    {"attention_backward_rope", .attention = OPS_HEADS(33, 256, 3, 3, 128)},
    {"attention", .attention = OPS_HEADS(1, 1000, 2, 1, 64)},
    {"attention", .attention = OPS_HEADS(1, 1000, 2, 1, 128)},
    {"attention_backward", .attention = OPS_HEADS(1, 1000, 2, 1, 64), .bias = true},
    {"attention_backward", .attention = OPS_HEADS(1, 1000, 2, 1, 128), .bias = true},
    {"attention_backward", .attention = OPS_HEADS(33, 321, 3, 3, 64), .bias = true},
    {"attention_backward", .attention = OPS_HEADS(33, 193, 3, 3, 128), .bias = true},
    {"attention_backward", .attention = OPS_HEADS(33, 200, 4, 4, 48), .bias = true},
    {"attention_backward", .attention = OPS_HEADS(33, 200, 4, 4, 72), .bias = true},
    {"attention_backward_rope", .attention = OPS_HEADS(33, 321, 3, 3, 64)},
    {"attention_backward_rope", .attention = OPS_HEADS(33, 193, 3, 3, 128)},
    {"attention_backward_rope", .attention = OPS_HEADS(2, 129, 4, 2, 80), .bias = true},
    /* few items: query heads are items */
    {"attention_backward", .attention = OPS_HEADS(1, 1100, 4, 1, 32)},
    {"attention_backward", .attention = OPS_HEADS(33, 384, 4, 4, 32), .bias = true},
    {"attention_backward", .attention = OPS_HEADS(33, 384, 4, 4, 24)},
    {"attention_backward", .attention = OPS_HEADS(1, 1024, 4, 1, 64), .bias = true},
    {"attention_backward_rope", .attention = OPS_HEADS(1, 1100, 4, 1, 64)},
    {"attention_backward_rope", .attention = OPS_HEADS(1, 1100, 7, 1, 128)},
    {"attention_backward", .attention = OPS_HEADS(1, 1200, 7, 1, 96), .bias = true},
    /* windows, rotated back in the kernel, over clusters of several bands */
    {"attention_backward_rope", .attention = OPS_WINDOW(1, 4224, 2, 1, 128, 200, 0, 0)},
    {"attention_backward_rope", .attention = OPS_WINDOW(36, 1000, 4, 4, 64, 300, 0, 0)},
    {"attention_backward_rope", .attention = OPS_WINDOW(36, 1000, 4, 4, 128, 300, 0, 0)},
    {"attention_backward", .attention = OPS_WINDOW(36, 1000, 4, 4, 64, 300, 0, 0), .bias = true},
};
enum { OP_SHAPE_GPU_COUNT = sizeof op_shapes_gpu / sizeof op_shapes_gpu[0] };

/* For block clusters in attention's backward pass (SIFR_CUDA_ATTENTION=clusters), in addition to
 * the shapes above with four tiles of 128 tokens: clusters of three and of four blocks; then more
 * items (a sequence and key head) than the 66 clusters of two that a GPU has, so that a cluster
 * processes several. Odd numbers of tiles have clusters of two, so three bands or more; with five
 * query heads or more per key head, query heads are items. */
#define CLUSTERS_SHAPES(X) \
    X(1, 768, 4, 2, 64)    \
    X(2, 768, 3, 1, 128)   \
    X(1, 1024, 3, 1, 64)   \
    X(1, 1024, 2, 2, 128)  \
    X(1, 500, 4, 2, 64)    \
    X(2, 449, 2, 1, 128)   \
    X(2, 700, 3, 1, 56)    \
    X(1, 1000, 2, 1, 96)   \
    X(1, 640, 4, 2, 64)    \
    X(1, 600, 2, 1, 128)   \
    X(2, 1152, 2, 2, 64)   \
    X(1, 1100, 3, 1, 128)  \
    X(1, 640, 6, 1, 64)    \
    X(2, 500, 7, 1, 128)   \
    X(1, 300, 5, 1, 80)    \
    X(2, 768, 3, 1, 32)
static const struct ops_case op_shapes_clusters[] = {
    CLUSTERS_SHAPES(BACKWARD_CASES){"attention_backward", .attention = OPS_HEADS(67, 512, 1, 1, 64),
                                    .bias = true},
    {"attention_backward", .attention = OPS_HEADS(67, 512, 1, 1, 32), .bias = true},
    {"attention_backward_rope", .attention = OPS_HEADS(34, 512, 4, 2, 64)},
    {"attention_backward", .attention = OPS_HEADS(67, 512, 1, 1, 128), .bias = true},
    {"attention_backward_rope", .attention = OPS_HEADS(67, 512, 1, 1, 128)},
    {"attention_backward_rope", .attention = OPS_HEADS(67, 640, 1, 1, 128)},
    {"attention_backward", .attention = OPS_HEADS(67, 640, 1, 1, 64), .bias = true},
    {"attention_backward_rope", .attention = OPS_WINDOW(67, 640, 1, 1, 128, 200, 0, 0)},
    {"attention_backward_rope", .attention = OPS_WINDOW(67, 640, 1, 1, 64, 200, 0, 0)},
};
enum { OP_SHAPE_CLUSTERS_COUNT = sizeof op_shapes_clusters / sizeof op_shapes_clusters[0] };

#endif
