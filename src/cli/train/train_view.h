/* train_view -- what `sifr train` shows: header, step lines or a live line, evaluations,
 * samples, the end.
 *
 * In one of three manners: for people on a terminal (a live line, evaluations kept), for people
 * in a file (plain lines), for programs (--json: one object a line, each with an "event").
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
    struct plot_point evals[VIEW_EVALS]; /* the last ones */
    int eval_count;
    char line[STEP_LINE_BYTES]; /* of the last step */
    int64_t line_step;
    bool line_kept, stop_said;
    bool stepped;  /* there is something to save */
    bool wordless; /* the run has tokens and no tokenizer */
    bool fresh;    /* --fresh was given */
    double shown;  /* when the live line was last written */
    struct json_out record;
    const struct run_config *config; /* borrowed; NULL: the run has not begun */
};

void train_view_open(struct train_view *view, struct cli *cli, bool json, bool quiet, bool fresh,
                     int64_t log_every);
void train_view_close(struct train_view *view);
/* Callbacks for trainer_run; they borrow the view. */
struct trainer_callbacks train_view_callbacks(struct train_view *view);
/* A progress function for run_config_resolve: a vocabulary is being learnt. `user` is the view. */
bool train_view_learning(void *user, int done, int total);
/* The end of a run: curve, figures, where things are, what to do next. A run that failed has said
 * why, and that stays the last that is seen. */
void train_view_summary(struct train_view *view, const struct trainer_summary *summary,
                        const char *folder);

#endif
