/* machine_presets -- see the header.
 *
 * One H200 has been measured (docs/benchmarks.md, "where the time goes"): products reach 0.68 of the
 * maker's rate at the card's power limit, attention 0.38 forward and 0.22 backward of causal
 * operations, kernels that stream 0.84 of the memory's rate; a call costs a few microseconds beside
 * its work. The other cards are taken to reach the same shares of their makers' figures.
 */
#include "plan/machine_presets.h"
#include <stdio.h>

const struct machine_preset machine_presets[] = {
    {"h200", "8 H200 SXM of 141 GB, NVLink 4, a 400 Gb/s NIC a card", 141e9, 989, 4.8e12, 370e9,
     45e9, 8},
    {"h100", "8 H100 SXM of 80 GB, NVLink 4, a 400 Gb/s NIC a card", 80e9, 989, 3.35e12, 370e9,
     45e9, 8},
    {"a100-80g", "8 A100 SXM of 80 GB, NVLink 3, a 200 Gb/s NIC a card", 80e9, 312, 2.04e12, 240e9,
     22e9, 8},
    {"a100-40g", "8 A100 SXM of 40 GB, NVLink 3, a 200 Gb/s NIC a card", 40e9, 312, 1.56e12, 240e9,
     22e9, 8},
};
const int machine_preset_count = sizeof machine_presets / sizeof machine_presets[0];

/* Shares of the makers' figures that were reached. */
static const double product_share = 0.68, attention_share = 0.38, backward_share = 0.22,
                    memory_share = 0.84, copy_share = 0.87;
static const double call = 3e-6;

void machine_preset_profile(const struct machine_preset *preset, struct machine_profile *profile)
{
    double flops = preset->tflops * 1e12, stream = memory_share * preset->memory_rate;
    *profile = (struct machine_profile){
        .card = true,
        .memory_bytes = (size_t)preset->memory_bytes,
        .ops.rates = {[OPS_KIND_PRODUCT] = {call, product_share * flops, stream},
                      [OPS_KIND_ATTENTION] = {call, attention_share * flops, stream},
                      [OPS_KIND_ATTENTION_BACKWARD] = {call, backward_share * flops, stream},
                      [OPS_KIND_MEMORY] = {call, flops, stream}},
        .comm = {.inside = {10e-6, 2e-6, preset->link_rate},
                 .between = {20e-6, 4e-6, preset->network_rate},
                 .node = preset->node,
                 .exchange = 15e-6,
                 .theft = 0.05,
                 .sum_bytes_per_second = stream},
        .copy_bytes_per_second = copy_share * preset->memory_rate,
        .has_ops = true,
        .has_comm = true,
    };
    snprintf(profile->name, sizeof profile->name, "%s", preset->name);
}
