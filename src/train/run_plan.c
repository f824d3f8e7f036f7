/* run_plan -- see the header. */
#include "train/run_plan.h"

#include "train/generate.h"

struct plan_request run_plan_request(const struct run_config *config)
{
    const struct train_config *train = &config->train;
    int64_t room = train->sample_every > 0 ? config->model.context : 0;
    return (struct plan_request){
        .model = config->model,
        .engine = config->engine,
        .zero = {.beta1 = train->beta1,
                 .beta2 = train->beta2,
                 .eps = train->eps,
                 .weight_decay = train->weight_decay,
                 .clip = train->clip,
                 .groups = config->groups.items,
                 .group_count = config->groups.count,
                 .micro_batches = config->engine.micro_batches},
        .ops = run_backend(config),
        .ranks = 1,
        .threads = (int)config->machine.threads,
        .decode_tokens = room,
        .decode_chunk = room < GENERATE_CHUNK ? room : GENERATE_CHUNK,
    };
}
