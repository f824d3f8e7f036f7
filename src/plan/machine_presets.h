/* machine_presets -- nodes of known GPUs: from the makers' figures, and what is reached of them. */
#ifndef PLAN_MACHINE_PRESETS_H
#define PLAN_MACHINE_PRESETS_H
#include "plan/machine.h"

struct machine_preset {
    const char *name, *words;
    double memory_bytes;
    const char *gpu;     /* its name in device/gpu_facts.c, for the peak rate */
    double memory_rate;  /* bytes a second of the GPU's memory, the maker's */
    double link_rate;    /* from GPU to GPU of a node, each way, reached */
    double network_rate; /* of a GPU to other nodes, each way, reached */
    int node;            /* GPUs of one */
    bool hopper;         /* attention's backward pass is our own there, else cuDNN's */
};
extern const struct machine_preset machine_presets[];
extern const int machine_preset_count;

/* The caller frees *profile. */
enum status machine_preset_profile(struct env *env, const struct machine_preset *preset,
                                   struct machine_profile *profile);

#endif
