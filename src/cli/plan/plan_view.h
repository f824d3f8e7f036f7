/* plan_view -- prints a plan as a table or as one JSON object. */
#ifndef CLI_PLAN_VIEW_H
#define CLI_PLAN_VIEW_H
#include "cli/command.h"
#include "train/data/data_size.h"
#include "train/run_plan.h"

struct plan_view { /* all borrowed */
    const struct run_config *config;
    const struct plan_request *request;
    const struct plan *plan;
    const struct plan_advice *advice;
    size_t memory_bytes;   /* of a rank; 0 = not known */
    size_t shared_bytes;   /* shared by the ranks of this machine; 0 = --memory was given */
    double runtime_bytes;  /* of a rank's process, outside its account: an estimate */
    struct data_size data; /* that a run would map */
    bool lines;            /* also list every buffer */
};

enum status plan_view_table(struct cli *cli, const struct plan_view *view);
enum status plan_view_json(struct cli *cli, const struct plan_view *view);
/* Memory of a rank: "74.5 GiB", or with --memory "74.5 GiB (80.0G bytes)". */
enum { PLAN_VIEW_MEMORY = 80 };
char *plan_view_memory(const struct plan_view *view, char out[PLAN_VIEW_MEMORY]); /* returns out */
/* Append what should differ from the request: "try zero.stage=3 engine.recompute=full". */
void plan_view_advice(const struct plan_view *view, struct text *text);

/* Append the PP stages of a pipeline. */
enum status plan_view_pipe(struct cli *cli, const struct plan_view *view, struct text *text);

#endif
