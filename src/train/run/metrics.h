/* metrics -- the records of a run: metrics.jsonl, samples.jsonl, TensorBoard events.
 *
 * Each record is one write: a crash loses none, and a reader sees only complete lines. After
 * creation, writing the record of a step allocates nothing. If a record cannot be written, for
 * example on a full disk, it is lost with a warning, and the run continues. Lost records are
 * counted per file.
 */
#ifndef TRAIN_METRICS_H
#define TRAIN_METRICS_H
#include "train/run/run_events.h"

struct metrics;

/* Open the three files in `folder`. Records of steps after `step` are dropped, since the run will
 * write them again; a warning names earlier steps without a record. `sampled` is the last step up
 * to `step` after which a text sample was due (0 = none): if one was due and samples.jsonl is
 * missing, a warning is logged. The files of an earlier run without a checkpoint are renamed.
 * `config_yaml` is shown in TensorBoard. `sample_bytes` is the expected size of a sample. `routing`
 * is that of the steps to come; NULL = they have none. */
enum status metrics_create(struct env *env, const char *folder, int64_t step, int64_t sampled,
                           const char *config_yaml, size_t sample_bytes,
                           const struct routing_report *routing, struct metrics **metrics);
void metrics_destroy(struct metrics *metrics); /* NULL is fine */

/* Write one line and one event; `val` is the evaluation after this step, NULL = none. */
enum status metrics_step(struct metrics *metrics, const struct trainer_step *step,
                         const struct evaluation *val);
/* Add the evaluation after an earlier step to its record, where the run was stopped in it. An I/O
 * error is an error: the run that resumes evaluates again. */
enum status metrics_evaluation(struct metrics *metrics, int64_t step, const struct evaluation *val);
enum status metrics_sample(struct metrics *metrics, const struct trainer_sample *sample);

#endif
