/* plan_search -- `sifr plan --gpus`: turns the given keys into a space of layouts, searches it, and
 * prints the result with plan_search_view.c. */
#ifndef CLI_PLAN_SEARCH_H
#define CLI_PLAN_SEARCH_H
#include "cli/command.h"
#include "plan/search.h"
#include "train/run_plan.h"

struct plan_search_asked {
    int64_t gpus, node, memory, top; /* node, memory: 0 = from the profile */
    const char *machine;             /* a preset or a file */
    bool json;
};

/* Resolves `config`, after open keys have got values to start with. The caller releases it. */
enum status plan_search(struct cli *cli, struct options *options,
                        const struct plan_search_asked *asked, struct run_config *config);

#endif
