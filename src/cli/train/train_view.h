/* train_view -- what `sifr train` prints while a run lasts: header, steps, evaluations, samples,
 * checkpoints. train_end.h prints the end.
 *
 * There are three formats: for a terminal (a live line for steps), for a file (plain lines), and
 * for programs (--json: one object per line, each with an "event").
 */
#ifndef CLI_TRAIN_VIEW_H
#define CLI_TRAIN_VIEW_H
#include "cli/command.h"
#include "cli/curve.h"
#include "cli/json_out.h"
#include "cli/train/step_line.h"

enum { VIEW_EVALS = 256 };

struct train_view {
    struct cli *cli;
    bool json, quiet;
    int64_t log_every;
    struct curve losses;
    struct plot_point evals[VIEW_EVALS]; /* the most recent ones */
    int eval_count;
    char line[STEP_LINE_BYTES]; /* of the last step */
    int64_t line_step;
    bool line_kept, stop_said;
    bool stepped;          /* a step was done: there is something to save */
    bool has_no_tokenizer; /* the run reads tokens and was given no tokenizer */
    bool fresh;            /* --fresh was given */
    double shown;          /* when the live line was last written */
    struct json_out record;
    const struct run_config *config; /* borrowed; NULL before the run is ready */
};

void train_view_open(struct train_view *view, struct cli *cli, bool json, bool quiet, bool fresh,
                     int64_t log_every);
void train_view_close(struct train_view *view);
/* Callbacks for trainer_run; they borrow the view. */
struct trainer_callbacks train_view_callbacks(struct train_view *view);
/* A progress function for run_config_resolve, while a vocabulary is learned. `user` is the view. */
bool train_view_learning(void *user, int done, int total);
/* Print the line of the last step, unless it has been printed. */
void train_view_keep_line(struct train_view *view);

static inline bool train_view_for_people(const struct train_view *view)
{
    return !view->json && !view->quiet;
}

/* The footprint of the memory that a rank computes in. */
static inline const struct footprint *train_view_held(const struct footprint_worst *held)
{
    return held->host_bytes > 0 ? &held->gpu : &held->process;
}

#endif
