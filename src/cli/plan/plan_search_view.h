/* plan_search_view -- the layouts that were found as a table for people and as one JSON object,
 * with the command that runs the first. */
#ifndef CLI_PLAN_SEARCH_VIEW_H
#define CLI_PLAN_SEARCH_VIEW_H
#include "cli/command.h"
#include "plan/search.h"
#include "train/run_plan.h"

struct plan_search_view { /* what is shown; all borrowed */
    const struct run_config *config;
    const struct options *options;
    const struct search_space *space;
    const struct search_result *result;
    const char *machine_words; /* of the preset, "" */
    double peak;               /* floating-point operations a second of a rank; 0 = not known */
    double seconds;            /* that the search took */
    const char *device;        /* where the machine computes, if nobody has said so; NULL */
    int threads;               /* of a rank, as it was measured, if nobody has said how many; 0 */
    bool alone;                /* the machine is one node, of whatever ranks there are */
};

/* Both say nothing about what does not fit: that is for who called. */
enum status plan_search_view_table(struct cli *cli, const struct plan_search_view *view);
enum status plan_search_view_json(struct cli *cli, const struct plan_search_view *view);

/* "tp 8, pp 16, dp 128, stage 1, micro-batch 1, recompute full, interleaved in 4": appended. */
void plan_search_say(const struct search_layout *layout, struct text *text);

/* --- plan_search_line.c
 * --------------------------------------------------------------------------- */
/* The keys of a layout that nobody has given and that are not what they are by default:
 * " --parallel.tp=8 --zero.stage=1". */
void plan_search_keys(const struct plan_search_view *view, const struct search_layout *layout,
                      struct text *text);
/* "sifr train -n 64 configs/a.yaml ...": what stood after `plan`, less its own flags and what does
 * nothing in this layout, and these. */
void plan_search_command(struct cli *cli, const struct plan_search_view *view,
                         const struct search_layout *layout, struct text *text);

#endif
