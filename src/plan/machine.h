/* machine -- what a planner must know of the machines: how fast they compute and talk, and what
 * they hold.
 *
 * There are presets for nodes of known GPUs, from the makers' figures and what is reached of them;
 * a file has what was measured: `sifr bench ops --save` and `sifr bench comm --save` write their
 * halves into one. JSON, every figure in SI units, by the names of the fields.
 */
#ifndef PLAN_MACHINE_H
#define PLAN_MACHINE_H
#include "comm/comm_price.h"
#include "ops/ops_price.h"

/* How many measured a half at once, and with how many threads each; 0: not known. */
struct machine_ranks {
    int ranks, threads;
};

struct machine_profile {
    char name[64];
    bool gpu;            /* it computes on GPUs */
    size_t memory_bytes; /* of a rank; 0: not known */
    struct ops_prices ops;
    struct comm_prices comm;
    double
        copy_bytes_per_second; /* device_copy, device_zero, device_accumulate: read and written */
    bool has_ops, has_comm;    /* which halves are there */
    struct machine_ranks ops_ranks, comm_ranks;
};

/* By the name of a preset or the path of a file; STATUS_CONFIG when that is none, or cannot be
 * read. The caller frees *profile. */
enum status machine_profile_load(struct env *env, const char *name_or_path,
                                 struct machine_profile *profile);
/* Put the halves that it has into the file at `path`, beside what is there of the other; calls that
 * were measured before and not again stay, so that several runs make one profile. Those that other
 * ranks measured are told of in a warning. */
enum status machine_profile_save(struct env *env, const struct machine_profile *profile,
                                 const char *path);
/* Refuse what a save would, before anything is measured: a file that is there and is no profile, or
 * is of another kind of machine (`gpu` NULL: not known yet), and a place that cannot be written. */
enum status machine_profile_check(struct env *env, const char *path, const bool *gpu);
void machine_profile_free(struct env *env, struct machine_profile *profile);

/* "h100", "h200", ...; NULL after the last. */
const char *machine_preset_name(int index);
const char *machine_preset_words(int index); /* what it is, for a list */

#endif
