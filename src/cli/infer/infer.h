/* infer -- what the commands that read a model share: their ranks, and the memory of these. */
#ifndef CLI_INFER_H
#define CLI_INFER_H
#include "cli/json_out.h"
#include "cli/launch/ranks_job.h"
#include "train/run/footprint.h"

/* The flag -n, in field `n` of struct `settings`. */
#define INFER_N(settings, more)                                                         \
    {                                                                                   \
        COMMAND_FLAG("n", settings, n, INT),                                            \
            .letter = 'n', COMMAND_RANGE(1, COMMAND_MOST_RANKS), .value_name = "RANKS", \
            .help = "number of ranks to start; omit it under mpirun or srun" more       \
    }

/* Find the ranks of -n (0 = not given), and fill in what of the job follows from the layout.
 * `threads` per rank, 0 = not given. */
enum status infer_find_ranks(struct cli *cli, int64_t n, const struct layout_config *layout,
                             int64_t threads, struct ranks_job *job);

/* Memory of this machine that its ranks may use together. Where they are processes, others may have
 * allocated already: then it is all of it. */
size_t infer_memory(const struct ranks_plan *plan);

static inline bool infer_is_first(const struct session_ranks *ranks)
{
    return !ranks || ranks->rank == 0;
}

/* "1.2 GiB on the largest of 4 ranks, 0.9 GiB of it parameters; 3.1 GiB on disk". The host's memory
 * is named if there is a GPU. `bytes` is at least 160. */
void infer_describe_memory(const struct footprint_worst *held, int ranks, char *out, size_t bytes);
void infer_json_memory(struct json_out *json, const struct footprint_worst *held, int ranks);

#endif
