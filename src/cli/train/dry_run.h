/* dry_run -- sizes and memory of a run, without allocating it (plan.h). */
#ifndef CLI_DRY_RUN_H
#define CLI_DRY_RUN_H
#include "cli/command.h"
#include "train/config/config.h"

/* Print the plan of a resolved configuration for one of `ranks` ranks, as JSON if `json`.
 * STATUS_FIT if memory is too small. */
enum status dry_run(struct cli *cli, const struct run_config *config, int ranks, const char *folder,
                    bool json);

#endif
