/* peak -- see the header. The figures are the makers' for dense bf16 products with fp32 sums; TF32,
 * which fp32 products use, has half of it on all of these cards.
 */
#include "train/peak.h"

#include <string.h>

/* A name that another one begins with comes after it. */
static const struct {
    const char *name; /* part of what the driver says */
    double tflops;    /* bf16 */
} cards[] = {
    {"GB300", 2500},     {"B300", 2250},    {"GB200", 2500},       {"B200", 2250},
    {"GH200", 989},      {"H200 NVL", 835}, {"H200", 989},         {"H100 PCIe", 756},
    {"H100 NVL", 835},   {"H100", 989},     {"H800 PCIe", 756},    {"H800", 989},
    {"H20", 148},        {"A100", 312},     {"A800", 312},         {"A40", 149.7},
    {"A30", 165},        {"A10G", 70},      {"A10", 125},          {"L40S", 362},
    {"L40", 181},        {"L4", 121},       {"RTX 6000 Ada", 364}, {"RTX A6000", 154.8},
    {"RTX 5090", 209.5}, {"RTX 4090", 165}, {"RTX 4080", 97.5},    {"RTX 3090", 71},
    {"RTX 3080", 59.5},
};

double peak_of_card(const char *name, enum dtype type)
{
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++)
        if (strstr(name, cards[i].name))
            return cards[i].tflops * 1e12 * (type == DTYPE_F32 ? 0.5 : 1.0);
    return 0.0;
}
