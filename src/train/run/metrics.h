/* metrics -- what a run writes while it goes: metrics.jsonl, samples.jsonl, TensorBoard events.
 *
 * Each record is one write; a crash loses none and a reader sees whole lines. After creation a
 * step's record allocates nothing. A record that cannot be written, on a disk that is full, is lost with a
 * loud line, and the run goes on: the next one is tried again. Each file's losses are counted apart.
 */
#ifndef TRAIN_METRICS_H
#define TRAIN_METRICS_H
#include "train/run/run_events.h"

struct metrics;

/* Open the three files in `folder`; lines of steps after `step` are dropped, since the run will write
 * them again, lines that are damaged are moved to FILE.damaged with a warning, and another names steps
 * up to it that have no record there. `sampled` is the last step up to it after which a text sample was
 * due, 0 = none was: where samples.jsonl is not there, that is said. All lines of an earlier run that
 * left no checkpoint are set aside. `config_yaml` is shown in TensorBoard. A sample has about
 * `sample_bytes` bytes. */
enum status metrics_create(struct env *env, const char *folder, int64_t step, int64_t sampled,
                           const char *config_yaml, size_t sample_bytes, struct metrics **metrics);
void metrics_destroy(struct metrics *metrics); /* NULL is fine */

/* One line and one event; `val` is the evaluation after this step, NULL = there was none. */
enum status metrics_step(struct metrics *metrics, const struct trainer_step *step,
                         const struct evaluation *val);
enum status metrics_sample(struct metrics *metrics, const struct trainer_sample *sample);

#endif
