/* bench_machine -- `sifr bench comm`, and `sifr bench ops` for a machine profile: measures on all
 * ranks, prints the results, and saves its half of the profile. */
#ifndef CLI_BENCH_MACHINE_H
#define CLI_BENCH_MACHINE_H
#include "cli/bench/bench_comm.h"
#include "cli/command.h"
#include "train/config/config.h"

struct bench_machine {
    struct run_config *config; /* bound, not resolved */
    bool comm;                 /* bench comm; otherwise bench ops */
    bool configured;           /* ops: the calls of `config`; otherwise those of a typical step */
    int device;                /* enum run_device, unless the configuration sets one */
    int64_t n, threads;        /* 0 = not given */
    double seconds;            /* time for each call; 0 = not given */
    struct bench_comm_config calls;
    const char *save; /* file of the profile; "" = do not save */
    bool json;
};

enum status bench_machine_run(struct cli *cli, struct options *options,
                              const struct bench_machine *order);

#endif
