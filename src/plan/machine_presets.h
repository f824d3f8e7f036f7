/* machine_presets -- nodes of known GPUs: vendor figures, and the share of them that is reached. */
#ifndef PLAN_MACHINE_PRESETS_H
#define PLAN_MACHINE_PRESETS_H
#include "plan/machine.h"

struct machine_preset {
    const char *name, *words;
    double memory_bytes;
    const char *gpu;     /* the GPU's name in device/gpu_facts.c, for the peak rate */
    double memory_rate;  /* the vendor's figure for GPU memory, bytes/s */
    double link_rate;    /* achieved between two GPUs of a node, bytes/s each way */
    double network_rate; /* achieved between a GPU and other nodes, bytes/s each way */
    int node;            /* GPUs per node */
    bool hopper;         /* attention's backward pass uses sifr's own kernels, otherwise cuDNN's */
};
extern const struct machine_preset machine_presets[];
extern const int machine_preset_count;

/* The caller frees *profile. */
enum status machine_preset_profile(struct env *env, const struct machine_preset *preset,
                                   struct machine_profile *profile);

#endif
