/* run_plan -- see the header. */
#include "train/run_plan.h"

#include <string.h>

#include "train/generate.h"
#include "train/trainer.h"

/* Tokens that samples need room for: a prompt has at most one a byte, and one before it. */
static int64_t decode_tokens(const struct run_config *config)
{
    const struct train_config *train = &config->train;
    int64_t room = (int64_t)strlen(train->sample_prompt) + 1 + train->sample_tokens;
    if (train->sample_every == 0)
        return 0;
    return room < config->model.context ? room : config->model.context;
}

struct plan_request run_plan_request(const struct run_config *config, int ranks)
{
    int64_t room = decode_tokens(config);
    return (struct plan_request){
        .model = config->model,
        .engine = config->engine,
        .zero = trainer_store_config(config),
        .loop_sums = 1, /* does anybody want to stop? */
        .ops = run_backend(config),
        .ranks = ranks,
        .threads = (int)config->machine.threads,
        .decode_tokens = room,
        .decode_chunk = room < GENERATE_CHUNK ? room : GENERATE_CHUNK,
    };
}
