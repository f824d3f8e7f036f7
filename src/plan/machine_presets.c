/* machine_presets -- the vendor figures of known GPUs, scaled by measurements on an H200.
 *
 * One H200 was measured in five steps (docs/benchmarks.md, "One GPU"). Products without an
 * activation reach 0.70 to 0.72 of the vendor's rate at the GPU's power limit. Streaming kernels
 * reach 0.84 of the memory rate. A call costs a few microseconds in addition to its work. Attention
 * and products with GELU depend on the shape, so they are listed as measured calls: the time of a
 * kind in a step, divided by its number of calls, or that of attention in isolation. Other GPUs are
 * assumed to reach the same shares of their vendors' figures, except in attention's backward pass:
 * without Hopper it is cuDNN's.
 *
 * The rates of offload are not from these steps. They are estimates: the link is PCI Express, 5.0
 * of 16 lanes (4.0 with the A100), of which copies of pinned memory reach about 0.8. Disk and host
 * memory of the H200 are those of a machine with one GPU; of the others, a GPU's part of a node of
 * eight: one NVMe drive (A100: half of one), and an eighth of 0.8 of the memory rate of two
 * processors. `sifr bench ops --save` measures a machine's own.
 */
#include "plan/machine_file.h"
#include <stdio.h>
#include "device/gpu_facts.h"

#define GIB 1073741824.0 /* memory sizes are what such GPUs report as available to a program */

const struct machine_preset machine_presets[] = {
    {"h200", "8 H200 SXM of 141 GB, NVLink 4, a 400 Gb/s NIC a GPU", 139.8 * GIB, "H200", 4.8e12,
     370e9, 45e9, 50e9, 3.3e9, 1.8e9, 125e9, 8, true},
    {"h100", "8 H100 SXM of 80 GB, NVLink 4, a 400 Gb/s NIC a GPU", 79.1 * GIB, "H100", 3.35e12,
     370e9, 45e9, 50e9, 6.5e9, 3.5e9, 60e9, 8, true},
    {"a100-80g", "8 A100 SXM of 80 GB, NVLink 3, a 200 Gb/s NIC a GPU", 79.1 * GIB, "A100", 2.04e12,
     240e9, 22e9, 24e9, 3.2e9, 1.8e9, 40e9, 8, false},
    {"a100-40g", "8 A100 SXM of 40 GB, NVLink 3, a 200 Gb/s NIC a GPU", 39.4 * GIB, "A100", 1.56e12,
     240e9, 22e9, 24e9, 3.2e9, 1.8e9, 40e9, 8, false},
};
const int machine_preset_count = sizeof machine_presets / sizeof machine_presets[0];

/* Shares of the vendor figures that were achieved. */
static const double product_share = 0.705, attention_share = 0.3, memory_share = 0.87,
                    copy_share = 0.84;
static const double call = 4e-6;
static double backward_share(const struct machine_preset *preset)
{
    return preset->hopper ? 0.31 : 0.21;
}

/* In f32, products use TF32. They are priced 2.7 times as high as in 16 bits: then four of five
 * steps of an H200 are within 6 % (rows 10, 14, 33 and 38 of docs/notes/2026-11-19-gpu-shapes.md),
 * and row 56, of small products, is 19 % too short. Products alone would give 2.55: those of row
 * 38 (gpt2, 4 layers, width 2000, 6210 tokens) ran at 273 TFLOP/s, and the 16-bit rate is 697. The
 * rest stands for other kernels that are slower in f32 and have no factor. Attention uses TF32,
 * too, in kernels without Hopper's features: with heads of 64 at T 1024 it was measured at 87
 * TFLOP/s forward and 52 backward, against 989. */
static const double f32_product_times = 2.7, f32_attention_share = 0.088,
                    f32_backward_share = 0.053;
static void set_f32_times(const struct machine_preset *preset, double *times)
{
    times[OPS_KIND_PRODUCT] = f32_product_times;
    times[OPS_KIND_ATTENTION] = attention_share / f32_attention_share;
    times[OPS_KIND_ATTENTION_BACKWARD] = backward_share(preset) / f32_backward_share;
    times[OPS_KIND_MEMORY] = 1;
}

/* The GPU whose 16-bit call times are listed below. */
static const char measured_gpu[] = "H200";
#define ATTENTION(b, t, h, g, d) .attention = OPS_HEADS((b), (t), (h), (g), (d))
#define GELU(r, c)                                                                      \
    {                                                                                   \
        "linear_gelu", .rows = (r), .linear = {.in = (c), .out = 4 * (c)}, .bias = true \
    }
#define GELU_BACK(r, c)                                                                     \
    {                                                                                       \
        "linear_dx_dgelu", .rows = (r), .linear = {.in = 4 * (c), .out = (c)}, .bias = true \
    }
enum gpus { EVERY, HOPPER, OTHER };
/* Attention in isolation on a GPU, milliseconds forward and backward, and of RoPE where that is a
 * call of its own. In a step, where power limits the clock, it takes about 5 % longer. */
#define ALONE(ms) (1.05e-3 * (ms))
#define ATTENDS(b, t, h, g, d, forward, backward, rope)                                       \
    {{"attention", ATTENTION(b, t, h, g, d)}, ALONE(forward), HOPPER},                        \
        {{"attention_backward", ATTENTION(b, t, h, g, d)}, ALONE(backward), HOPPER},          \
    {                                                                                         \
        {"attention_backward_rope", ATTENTION(b, t, h, g, d)}, ALONE(backward + rope), HOPPER \
    }
static const struct {
    struct ops_case shape;
    double seconds;
    enum gpus gpus;
} measured[] = {
    {{"attention", ATTENTION(64, 1024, 12, 12, 64)}, 4.6e-3 / 12, EVERY},
    {{"attention", ATTENTION(32, 1024, 20, 20, 64)}, 11.8e-3 / 36, EVERY},
    {{"attention", ATTENTION(16, 1024, 25, 25, 64)}, 10.0e-3 / 48, EVERY},
    {{"attention", ATTENTION(16, 2048, 32, 8, 64)}, 13.1e-3 / 16, EVERY},
    {{"attention", ATTENTION(4, 2048, 24, 8, 128)}, 6.6e-3 / 28, EVERY},
    {{"attention_backward", ATTENTION(64, 1024, 12, 12, 64)}, 10.6e-3 / 12, HOPPER},
    {{"attention_backward", ATTENTION(32, 1024, 20, 20, 64)}, 27.7e-3 / 36, HOPPER},
    {{"attention_backward", ATTENTION(16, 1024, 25, 25, 64)}, 24.0e-3 / 48, HOPPER},
    {{"attention_backward", ATTENTION(16, 2048, 32, 8, 64)}, 35.1e-3 / 16, HOPPER},
    {{"attention_backward", ATTENTION(4, 2048, 24, 8, 128)}, 25.0e-3 / 28, HOPPER},
    {{"attention_backward_rope", ATTENTION(16, 2048, 32, 8, 64)}, 35.9e-3 / 16, HOPPER},
    {{"attention_backward_rope", ATTENTION(4, 2048, 24, 8, 128)}, 25.4e-3 / 28, HOPPER},
    {{"attention_backward", ATTENTION(64, 1024, 12, 12, 64)}, 15.6e-3 / 12, OTHER},
    {{"attention_backward", ATTENTION(32, 1024, 20, 20, 64)}, 40.3e-3 / 36, OTHER},
    {{"attention_backward", ATTENTION(16, 1024, 25, 25, 64)}, 34.7e-3 / 48, OTHER},
    {{"attention_backward", ATTENTION(16, 2048, 32, 8, 64)}, 51.2e-3 / 16, OTHER},
    {{"attention_backward", ATTENTION(4, 2048, 24, 8, 128)}, 24.1e-3 / 28, OTHER},
    ATTENDS(32, 256, 27, 3, 128, 0.058, 0.188, 0),
    ATTENDS(4, 1024, 33, 33, 128, 0.094, 0.255, 0),
    ATTENDS(16, 1024, 18, 9, 128, 0.177, 0.564, 0),
    ATTENDS(3, 4127, 18, 18, 128, 0.425, 1.531, 0),
    ATTENDS(4, 8192, 12, 12, 128, 1.386, 4.422, 0),
    ATTENDS(1, 8192, 12, 3, 64, 0.205, 0.907, 0),
    ATTENDS(15, 768, 10, 10, 256, 0.109, 0.565, 0.04),
    ATTENDS(4, 4096, 14, 1, 256, 0.751, 4.192, 0.06),
    ATTENDS(2, 4096, 17, 17, 256, 0.480, 2.498, 0.07),
    {GELU(65536, 768), 15.9e-3 / 24, EVERY},
    {GELU(32768, 1280), 56.3e-3 / 72, EVERY},
    {GELU(16384, 1600), 56.8e-3 / 96, EVERY},
    {GELU_BACK(65536, 768), 15.9e-3 / 24, EVERY},
    {GELU_BACK(32768, 1280), 56.3e-3 / 72, EVERY},
    {GELU_BACK(16384, 1600), 56.8e-3 / 96, EVERY},
};
enum { MEASURED = sizeof measured / sizeof measured[0] };

enum status machine_preset_profile(struct env *env, const struct machine_preset *preset,
                                   struct machine_profile *profile)
{
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16}; /* equally fast */
    double tflops = gpu_peak_tflops(preset->gpu), flops = tflops * 1e12;
    double measured_tflops = gpu_peak_tflops(measured_gpu);
    double stream = memory_share * preset->memory_rate;
    struct ops_measured *calls;
    int count = 0;
    TRY(mem_alloc_array(env, MEM_OTHER, "measured calls", 2 * MEASURED, sizeof *calls, &calls));
    for (int i = 0; i < 2 * MEASURED; i++) {
        enum gpus gpus = measured[i / 2].gpus;
        if (gpus == EVERY || (gpus == HOPPER) == preset->hopper)
            calls[count++] = (struct ops_measured){.shape = measured[i / 2].shape,
                                                   .type = types[i % 2],
                                                   .seconds = measured[i / 2].seconds *
                                                              measured_tflops / tflops};
    }
    *profile = (struct machine_profile){
        .gpu = true,
        .capability = preset->hopper ? 90 : 0,
        .memory_bytes = (size_t)preset->memory_bytes,
        .ops = {.rates = {[OPS_KIND_PRODUCT] = {call, product_share * flops, stream},
                          [OPS_KIND_ATTENTION] = {call, attention_share * flops, stream},
                          [OPS_KIND_ATTENTION_BACKWARD] = {call, backward_share(preset) * flops,
                                                           stream},
                          [OPS_KIND_MEMORY] = {call, flops, stream}},
                .swiglu_alone = !preset->hopper,
                .measured = calls,
                .measured_count = count},
        .comm = {.inside = {10e-6, 2e-6, preset->link_rate},
                 .between = {20e-6, 4e-6, preset->network_rate},
                 .node = preset->node,
                 .exchange = 15e-6,
                 .theft = 0.05,
                 .sum_bytes_per_second = stream},
        .copy_bytes_per_second = copy_share * preset->memory_rate,
        .has_ops = true,
        .has_comm = true,
        .offload = {.link = preset->host_link_rate,
                    .disk_read = preset->disk_read_rate,
                    .disk_write = preset->disk_write_rate,
                    .host_update = preset->host_rate},
    };
    set_f32_times(preset, profile->ops.f32_times);
    ops_prices_sort(&profile->ops);
    snprintf(profile->name, sizeof profile->name, "%s", preset->name);
    return STATUS_OK;
}
