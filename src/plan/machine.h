/* machine -- what a planner has to know about machines: how fast they compute and communicate, and
 * how much memory they have.
 *
 * Presets describe nodes of known GPUs, from vendor figures and the fraction of them that is
 * reached. A file holds measurements: `sifr bench ops --save` and `sifr bench comm --save` write
 * one half each into the same file. JSON; every figure is in SI units, under the name of its field.
 */
#ifndef PLAN_MACHINE_H
#define PLAN_MACHINE_H
#include "comm/comm_price.h"
#include "ops/ops_price.h"

/* How many ranks measured a half at the same time, and with how many threads each; 0: unknown. */
struct machine_ranks {
    int ranks, threads;
};

/* Bytes per second of what offload uses; 0: unknown, and no time is predicted. */
struct machine_offload {
    double link;                  /* between host and GPU, each way; 0 on the CPU */
    double disk_read, disk_write; /* of a rank's file */
    double host_update;           /* read and written by a rank's cores when they update state in
                                     host memory; 0 on the CPU, where that is an op like others */
};

struct machine_profile {
    char name[64];
    bool gpu;            /* ranks compute on GPUs */
    int capability;      /* of the GPUs, as device_capability; 0: unknown */
    size_t memory_bytes; /* per rank; 0: unknown */
    struct ops_prices ops;
    struct comm_prices comm;
    double
        copy_bytes_per_second; /* device_copy, device_zero, device_accumulate: read and written */
    bool has_ops, has_comm;    /* which halves are present */
    struct machine_offload offload; /* measured with the ops; files of earlier versions lack it */
    struct machine_ranks ops_ranks, comm_ranks;
};

/* Load by the name of a preset or the path of a file. STATUS_CONFIG if there is no such profile or
 * it cannot be read. The caller frees *profile. */
enum status machine_profile_load(struct env *env, const char *name_or_path,
                                 struct machine_profile *profile);
/* Write the present halves to the file at `path` and keep the file's other half. Calls that were
 * measured earlier and not again stay, so several runs make one profile. Warns if those were
 * measured by another number of ranks. */
enum status machine_profile_save(struct env *env, const struct machine_profile *profile,
                                 const char *path);
/* Refuse what a save would refuse, before anything is measured: an existing file that is not a
 * profile or belongs to the other kind of machine (`gpu` NULL: unknown yet), and a path that cannot
 * be written. */
enum status machine_profile_check(struct env *env, const char *path, const bool *gpu);
void machine_profile_free(struct env *env, struct machine_profile *profile);

/* "h100", "h200", ...; NULL after the last */
const char *machine_preset_name(int index);
const char *machine_preset_words(const char *name); /* its description; "" = no such preset */

/* --- machine_fit.c: fits the few figures of a profile to measurements ------------------------- */

/* The fit minimizes the sum of |log(predicted / measured)|: every measurement counts by its ratio,
 * and a disturbed one counts linearly, not squared. */

struct fit_call { /* one call of an op */
    double flops, bytes, seconds;
};
/* seconds = call + max(flops / flops_per_second, bytes / bytes_per_second). Without calls: all 0.
 */
struct ops_rate machine_fit_rate(const struct fit_call *calls, int count);

struct fit_message { /* a collective in which each rank sends `bytes` in `messages` messages */
    int messages;
    double bytes, seconds;
};
/* seconds = latency + messages * message + bytes / bytes_per_second. If all calls have the same
 * number of messages, as with two ranks, latency and messages cannot be told apart: each gets half.
 */
struct comm_wire machine_fit_wire(const struct fit_message *calls, int count);

/* The worst ratio of predicted to measured seconds, or its inverse: 1.2 is 20 % off. */
double machine_fit_rate_error(struct ops_rate rate, const struct fit_call *calls, int count);
double machine_fit_wire_error(struct comm_wire wire, const struct fit_message *calls, int count);

/* The median of `count` values, which are sorted; the upper of two. */
double machine_fit_median(double *values, int count);

#endif
