/* machine_file -- reads and prints the profile of a machine.
 *
 *     {"format": "sifr machine", "version": 1, "name": "...", "gpu": false, "memory_bytes": 0,
 *      "ops": {"ranks": 2, "threads": 1, "rates": {"product": {...}, ...},
 *              "copy_bytes_per_second": 1e10, "measured": [...]},
 *      "offload": {"link_bytes_per_second": 5e10, ...},
 *      "comm": {"ranks": 2, "threads": 1, "inside": {...}, "between": {...}, "node": 0, ...}}
 *
 * Either half may be missing, and so may offload, ranks and threads, which older files do not have.
 * ops may also have f32_times and swiglu_alone, as in struct ops_prices, and a profile of GPUs
 * "capability": 90 for 9.0.
 * A measured call has the fields of its struct ops_case that are not 0. A file is untrusted input:
 * missing, duplicate and invalid values are refused.
 */
#ifndef PLAN_MACHINE_FILE_H
#define PLAN_MACHINE_FILE_H
#include <jansson.h>
#include "base/text.h"
#include "plan/machine.h"

enum {
    MACHINE_FILE_BYTES = 16 << 20, /* at most */
    MACHINE_FILE_CALLS = 1 << 16   /* measured calls, at most */
};
/* Figures are 0 (where allowed) or in this range, so that prices computed from them stay finite. */
#define MACHINE_FILE_LEAST 1e-18
#define MACHINE_FILE_MOST  1e24

/* `origin` names the file in messages. The caller frees *profile. */
enum status machine_file_parse(struct env *env, const char *data, size_t bytes, const char *origin,
                               struct machine_profile *profile);
void machine_file_print(const struct machine_profile *profile, struct text *text);

/* --- one measured call: machine_calls.c ------------------------------------------------------- */

struct machine_reader {
    struct env *env;
    const char *origin;
};

/* Whether a value is a number in the range above, or 0 if that is allowed. */
bool machine_is_figure(const json_t *value, bool positive);
enum status machine_call_read(const struct machine_reader *r, json_t *object, size_t index,
                              struct ops_measured *call);
void machine_call_print(const struct ops_measured *call, struct text *text);

/* --- machine_presets.c: nodes of known GPUs --------------------------------------------------- */

/* Vendor figures, and the share of them that is reached. */
struct machine_preset {
    const char *name, *words;
    double memory_bytes;
    const char *gpu;       /* the GPU's name in device/gpu_facts.c, for the peak rate */
    double memory_rate;    /* the vendor's figure for GPU memory, bytes/s */
    double link_rate;      /* achieved between two GPUs of a node, bytes/s each way */
    double network_rate;   /* achieved between a GPU and other nodes, bytes/s each way */
    double host_link_rate; /* achieved between host and GPU, bytes/s each way */
    double disk_read_rate, disk_write_rate, host_rate; /* a GPU's part of disk and host memory */
    int node;                                          /* GPUs per node */
    bool hopper; /* measured calls and shares are those of our Hopper kernels; else of cuDNN's
                  * backward pass of attention, and swiglu_alone */
};
extern const struct machine_preset machine_presets[];
extern const int machine_preset_count;

/* The caller frees *profile. */
enum status machine_preset_profile(struct env *env, const struct machine_preset *preset,
                                   struct machine_profile *profile);

#endif
