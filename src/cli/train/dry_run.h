/* dry_run -- what a run would take, without taking it: see plan.h. */
#ifndef CLI_DRY_RUN_H
#define CLI_DRY_RUN_H
#include "cli/command.h"
#include "train/config/config.h"

/* Print the plan of a resolved configuration for one of `ranks` (as JSON with `json`). STATUS_FIT
 * when memory would not do. */
enum status dry_run(struct cli *cli, const struct run_config *config, int ranks, const char *folder,
                    bool json);

#endif
