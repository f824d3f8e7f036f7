/* plan_search -- `sifr plan --gpus`: what a person has given becomes a space of layouts, is
 * searched, and shown by plan_search_view.c. */
#ifndef CLI_PLAN_SEARCH_H
#define CLI_PLAN_SEARCH_H
#include "cli/command.h"
#include "plan/search.h"
#include "train/run_plan.h"

struct plan_search_asked {
    int64_t gpus, node, memory, top; /* node, memory: 0 = as the machine has it */
    const char *machine;             /* a preset or a file */
    bool json;
};

/* Resolves `config` by itself: what is left open is not yet anybody's. The caller releases it. */
enum status plan_search(struct cli *cli, struct options *options,
                        const struct plan_search_asked *asked, struct run_config *config);

#endif
