/* plan_view -- prints a plan as a table or as one JSON object, and Table 1 of the ZeRO paper. */
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

enum status plan_view_table1(struct cli *cli, bool json);

/* --- plan_lines.c: every buffer of a planned rank, sorted for reading ------------------------- */

struct plan_line {
    enum mem_location location;
    enum mem_category category;
    size_t bytes;
    char name[112];
};

struct plan_lines {
    struct text room; /* memory of the array */
    const struct plan_line *line;
    int count;
};

/* The buffers of rank 0: GPU before host, by category, largest first. Free them also after a
 * failure. */
enum status plan_lines_collect(struct env *env, const struct plan_request *request,
                               struct plan_lines *lines);
void plan_lines_free(struct plan_lines *lines);

#endif
