/* plan_view -- a plan as a table for people and as one JSON object; and the ZeRO paper's Table
 * 1. */
#ifndef CLI_PLAN_VIEW_H
#define CLI_PLAN_VIEW_H
#include "cli/command.h"
#include "train/data/data_size.h"
#include "train/run_plan.h"

struct plan_view { /* what is shown; all borrowed */
    const struct run_config *config;
    const struct plan_request *request;
    const struct plan *plan;
    const struct plan_advice *advice;
    size_t memory_bytes;   /* of one rank; 0 = not known */
    size_t shared_bytes;   /* which the ranks here share; 0 = memory_bytes was told */
    double runtime_bytes;  /* of one rank's process, beside its account: an estimate */
    struct data_size data; /* that a run would map */
    bool lines;            /* every buffer too */
};

enum status plan_view_table(struct cli *cli, const struct plan_view *view);
enum status plan_view_json(struct cli *cli, const struct plan_view *view);
/* What a rank has: "74.5 GiB", and where --memory told it, in its unit too: "(80.0G bytes)". */
enum { PLAN_VIEW_MEMORY = 80 };
char *plan_view_memory(const struct plan_view *view, char out[PLAN_VIEW_MEMORY]); /* returns out */
/* "try zero.stage=3 engine.recompute=full": what differs from the request. `text` is appended
 * to. */
void plan_view_advice(const struct plan_view *view, struct text *text);

/* The stages of a pipeline, where it has one. `text` is appended to. */
enum status plan_view_pipe(struct cli *cli, const struct plan_view *view, struct text *text);

enum status plan_view_table1(struct cli *cli, bool json);

#endif
