/* train_view -- what `sifr train` prints while a run lasts: header, steps, evaluations, samples,
 * checkpoints. train_end.c prints the end.
 *
 * There are three formats: for a terminal (a live line for steps), for a file (plain lines), and
 * for programs (--json: one object per line, each with an "event").
 */
#ifndef CLI_TRAIN_VIEW_H
#define CLI_TRAIN_VIEW_H
#include "cli/command.h"
#include "cli/plot.h"
#include "cli/json_out.h"
#include "train/trainer.h"

enum { VIEW_EVALS = 256, STEP_LINE_BYTES = 320 };

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
    bool stepped;            /* a step was done: there is something to save */
    bool has_no_tokenizer;   /* the run reads tokens and was given no tokenizer */
    bool fresh;              /* --fresh was given */
    double shown;            /* when the live line was last written */
    const char *threads_why; /* borrowed; "one per core"; "" = run.threads says so */
    struct json_out record;
    const struct run_config *config; /* borrowed; NULL before the run is ready */
};

void train_view_open(struct train_view *view, struct cli *cli, bool json, bool fresh,
                     int64_t log_every);
void train_view_close(struct train_view *view);
/* Callbacks for trainer_run; they borrow the view. */
struct trainer_callbacks train_view_callbacks(struct train_view *view);
/* For run_config_resolve, while a vocabulary is learned: a signal stops it. `user` is the view. */
bool train_view_learning(void *user, int done, int total);
/* Begin a JSON record; the caller adds fields and flushes it. */
struct json_out *train_view_event(struct train_view *view, const char *event);
/* Print the line of the last step, unless it has been printed. */
void train_view_keep_line(struct train_view *view);

static inline bool train_view_for_people(const struct train_view *view)
{
    return !view->json && !view->quiet;
}

/* Append what is not on the device: "; on the host 1.2 GiB; on disk 3.4 GiB". */
void train_view_elsewhere(const struct footprint_worst *held, char *out, size_t bytes);
/* The footprint of the memory that a rank computes in. */
static inline const struct footprint *train_view_held(const struct footprint_worst *held)
{
    return held->host_bytes > 0 ? &held->gpu : &held->process;
}

/* Format a step into `out` (STEP_LINE_BYTES), without figures that are not known (mfu, eta):
 *
 *   step   120/2000   6.0% | loss 3.2841 | gnorm 0.83 | lr 3.00e-04 | 412 ms | 79.5k tok/s |
 *   mfu 41.2% | mem 23.1 GiB | eta 12m54s                             (in one line)
 *
 * If the GPU reports them, "| 1755 MHz, 640 W" follows mfu. For a SARS model "| active 31%, gated
 * 64% | meta 5.21 (norm 0.11)" follows lr. Returns out. */
char *step_line(char *out, const struct trainer_step *step);

/* --- train_end.c ------------------------------------------------------------------------------ */

/* The loss curve, figures, the checkpoint and the next command; with --json one object. After a
 * failure people see only its message, as the last line. */
void train_end_show(struct train_view *view, const struct trainer_summary *summary,
                    const char *folder);

/* --- dry_run.c: sizes and memory of a run, without allocating it (plan.h) --------------------- */

/* Print the plan of a resolved configuration for one of `ranks` ranks, as JSON if `json`.
 * STATUS_FIT if memory is too small. */
enum status dry_run(struct cli *cli, const struct run_config *config, int ranks, const char *folder,
                    bool json);

/* --- ranks_table.c: memory, traffic and waiting time over ranks, compared with formulas ------- */

/* Bytes that rank 0 sends in a step according to the formulas: (N-1)/N x Psi elements for every
 * gather and every reduction of the whole model. Padding, tied weights and pieces that stay
 * gathered are not modelled. In a pipeline N is the number of copies and Psi counts the PP stage;
 * with tensor parallelism Psi counts this rank's part of it. */
struct ranks_volume {
    double gather, reduce, muon, pipe, tensor;
};
struct ranks_volume ranks_formula(const struct run_config *config,
                                  const struct trainer_summary *summary);
/* The share of communication that overlapped with compute; NAN: there was none. The second function
 * counts only TP groups. */
double ranks_hidden(const struct traffic *traffic);
double ranks_tensor_hidden(const struct traffic *traffic);

/* "4 (mpi), stage 3, prefetch 1" */
void ranks_describe(const struct trainer_facts *facts, char *out, size_t bytes);
/* For runs with more than one rank that have done a step. */
void ranks_table_print(struct console *console, const struct run_config *config,
                       const struct trainer_summary *summary);
void ranks_table_json(struct json_out *json, const struct run_config *config,
                      const struct trainer_summary *summary);

#endif
