/* plan_view -- the parts of `sifr plan`: prints a plan as a table or as one JSON object, and
 * searches for the best layout. */
#ifndef CLI_PLAN_VIEW_H
#define CLI_PLAN_VIEW_H
#include "cli/command.h"
#include "plan/scaling.h"
#include "train/data/data_size.h"
#include "train/run_plan.h"

struct plan_view { /* all borrowed */
    const struct run_config *config;
    const struct plan_request *request;
    const struct plan *plan;
    const struct plan_advice *advice;
    struct plan_room room; /* of a rank; memory 0 = not known; host, disk 0 = not given */
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
/* ", 40.0 GiB on the host, 120.0 GiB on disk": of `bytes`, what `given` limits. Returns out. */
char *plan_view_elsewhere(const struct plan_room *bytes, const struct plan_room *given,
                          char out[PLAN_VIEW_MEMORY]);
/* Append which back end priced the calls, unless it is the device's own: scratch memory and times
 * are others then. `what` is approximate: "scratch memory is". */
void plan_view_prices(const struct run_config *config, const struct plan_request *request,
                      const char *what, struct text *text);
/* Append what should differ from the request: "try zero.stage=3 engine.recompute=full". */
void plan_view_advice(const struct plan_view *view, struct text *text);

/* Append the PP stages of a pipeline. */
enum status plan_view_pipe(struct cli *cli, const struct plan_view *view, struct text *text);

/* A gradient noise scale, and where it is from. */
struct plan_noise {
    double scale;    /* in sequences */
    const char *run; /* the folder of the run that measured it; "" = given by --noise-scale */
    int64_t step;    /* of that run */
};

/* --- plan_search.c: `sifr plan --gpus` -------------------------------------------------------- */

/* Turns the given keys into a space of layouts, searches it, and prints the result, with the
 * command that runs the best layout. */
struct plan_search_asked {
    int64_t gpus, node, memory, top; /* node, memory: 0 = from the profile */
    int64_t host_memory, disk;       /* 0 = not for offload */
    const char *machine;             /* a preset or a file */
    const struct plan_noise *noise;  /* NULL = only the layouts of all ranks */
    bool json;
    const char *html; /* a page to write; "" = none */
};

/* Resolves `config`, after open keys have got values to start with. The caller releases it. */
enum status plan_search(struct cli *cli, struct options *options,
                        const struct plan_search_asked *asked, struct run_config *config);

/* --- plan_search_view.c: the layouts as a table or as one JSON object ------------------------- */

struct plan_search_view { /* all borrowed */
    const struct run_config *config;
    const struct options *options;
    const struct search_space *space;
    const struct search_result *result;
    const char *machine_words; /* description of the preset; "" = a file */
    double peak;               /* floating-point operations per second of a rank; 0 = not known */
    double seconds;            /* duration of the search */
    const char *device;        /* run.device of the machine; NULL = the user set it */
    int threads;               /* run.threads of the profile; 0 = not changed */
    bool alone;                /* the profile has no node size: all ranks are on one node */
};

/* The caller reports when nothing fits. */
enum status plan_search_view_table(struct cli *cli, const struct plan_search_view *view);
enum status plan_search_view_json(struct cli *cli, const struct plan_search_view *view);

/* Append the model, the cluster, the step, the counts of the search, and notes. */
void plan_search_describe(const struct plan_search_view *view, struct text *text);
/* "6.28 s" */
char *plan_search_seconds(char out[32], double seconds);
/* Append "tp 8, pp 16, dp 128, stage 1, micro-batch 1, recompute full, interleaved 4". */
void plan_search_say(const struct search_layout *layout, struct text *text);
/* The value of zero.accumulate. */
const char *plan_search_sums(const struct search_layout *layout);

/* --- plan_search_line.c ------------------------------------------------------------------- */
/* Append the keys of a layout that the user did not set and that differ from their defaults:
 * " --parallel.tp=8 --zero.stage=1". */
void plan_search_keys(const struct plan_search_view *view, const struct search_layout *layout,
                      struct text *text);
/* Append "sifr train -n 64 configs/a.yaml ...": the arguments of `plan` without its own flags and
 * without keys that have no effect in this layout, then the keys of the layout. */
void plan_search_command(struct cli *cli, const struct plan_search_view *view,
                         const struct search_layout *layout, struct text *text);

/* --- plan_batch.c: `sifr plan --noise-scale` and `sifr plan --run` ---------------------------- */

/* Steps and time to the same loss against the number of ranks, as a table with pictures or as one
 * JSON object. Warns if the global batch is above the noise scale. */
struct plan_batch_view { /* all borrowed */
    const struct run_config *config;
    const struct plan_noise *noise;
    const struct batch_law *law;
    const struct scaling *scaling;
    const struct plan_search_view *search; /* NULL = nothing is timed */
    int ranks;                             /* of the run */
};
enum status plan_batch_show(struct cli *cli, const struct plan_batch_view *view, bool json);

#endif
