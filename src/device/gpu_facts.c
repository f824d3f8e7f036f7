/* gpu_facts -- peak rates as published by the manufacturer. */
#include "device/gpu_facts.h"
#include <ctype.h>
#include <stdbool.h>
#include <string.h>

/* Matched against the name that the driver reports; the first match wins. */
static const struct {
    const char *words;
    double tflops;
} gpus[] = {
    {"GB300", 2500},       {"B300", 2250},    {"GB200", 2500},     {"B200", 2250},
    {"GH200", 989},        {"H200 NVL", 835}, {"H200", 989},       {"H100 PCIe", 756},
    {"H100 NVL", 835},     {"H100", 989},     {"H800 PCIe", 756},  {"H800", 989},
    {"H20", 148},          {"A100", 312},     {"A800", 312},       {"A40", 149.7},
    {"A30", 165},          {"A10G", 70},      {"A10", 125},        {"L40S", 362},
    {"L40", 181},          {"L4", 121},       {"RTX 5090", 209.5}, {"RTX 4090", 165},
    {"RTX 4080", 97.5},    {"RTX 3090", 71},  {"RTX 3080", 59.5},  {"RTX A6000", 154.8},
    {"RTX 6000 Ada", 364},
};

/* Whether `name` contains `words` as whole words. */
static bool has_words(const char *name, const char *words)
{
    size_t bytes = strlen(words);
    for (const char *at = name; (at = strstr(at, words)) != NULL; at++)
        if ((at == name || !isalnum((unsigned char)at[-1])) && !isalnum((unsigned char)at[bytes]))
            return true;
    return false;
}

double gpu_peak_tflops(const char *name)
{
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++)
        if (has_words(name, gpus[i].words))
            return gpus[i].tflops;
    return 0.0;
}

double gpu_peak_flops(const char *name, enum dtype type)
{
    return gpu_peak_tflops(name) * 1e12 * (type == DTYPE_F32 ? 0.5 : 1.0);
}
