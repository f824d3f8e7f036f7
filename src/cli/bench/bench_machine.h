/* bench_machine -- `sifr bench comm`, and `sifr bench ops` where it is for the profile of a
 * machine: measure on all ranks, show, and save the half that was measured. */
#ifndef CLI_BENCH_MACHINE_H
#define CLI_BENCH_MACHINE_H
#include "cli/bench/bench_comm.h"
#include "cli/command.h"
#include "train/config/config.h"

struct bench_machine {
    struct run_config *config; /* bound, not resolved */
    bool comm;                 /* else ops */
    bool configured;           /* ops: the calls of this run, else usual ones */
    int device;                /* enum run_device, where the run does not say */
    int64_t n, threads;        /* 0 = not given */
    double seconds;            /* for each call; 0 = not given */
    struct bench_comm_config calls;
    const char *save; /* "" = nowhere */
    bool json;
};

enum status bench_machine_run(struct cli *cli, struct options *options,
                              const struct bench_machine *order);

#endif
