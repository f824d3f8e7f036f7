/* agreement -- the value of the majority counts as correct (in a tie, that of the lowest rank), and
 * the message names the other ranks. The texts of configurations are exchanged only if they differ,
 * to find the key.
 */
#include "train/config/agreement.h"
#include <stdio.h>
#include <string.h>
#include <xxhash.h>
#include "train/checkpoint/config_lines.h"
#include "train/checkpoint/fingerprint.h"
#include "train/models/model_weights.h"

enum { MOST_WINDOWS = 1024, MOST_LISTED = 8 };

/* --- fingerprints --------------------------------------------------------------------------- */

/* Must this key be the same on all ranks? */
static bool is_bound(const char *key)
{
    static const char *const keys[] = {
        "run.threads:",     "run.bind:",         "run.kernels:",
        "run.peak_tflops:", "run.stop_timeout:", "run.device_memory:",
        "train.log_every:", "comm.timeout:",     "comm.delay:"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strncmp(key, keys[i], strlen(keys[i])) == 0)
            return false;
    return true;
}

/* Hash evenly spaced windows of the first epoch, and of the held-out data. */
static enum status print_windows(const struct dataset *data, int64_t context, int32_t *room,
                                 uint64_t *print)
{
    size_t bytes = 2 * (size_t)context * sizeof *room;
    int64_t train = dataset_train_windows(data), held = dataset_eval_count(data);
    int64_t step = 1 + train / MOST_WINDOWS, held_step = 1 + held / MOST_WINDOWS, text_bytes;
    for (int64_t i = 0; i < train; i += step) {
        TRY(dataset_sample(data, (uint64_t)i, room, room + context));
        *print = XXH3_64bits_withSeed(room, bytes, *print);
    }
    for (int64_t i = 0; i < held; i += held_step) {
        TRY(dataset_eval_window(data, i, room, room + context, &text_bytes));
        *print = XXH3_64bits_withSeed(room, bytes, *print);
    }
    return STATUS_OK;
}

enum status agreement_print_data(struct env *env, const struct dataset *data, int64_t context,
                                 uint64_t *print)
{
    int64_t sizes[] = {dataset_train_tokens(data), dataset_eval_tokens(data)};
    int32_t *room;
    *print = XXH3_64bits(sizes, sizeof sizes);
    TRY(mem_alloc_array(env, MEM_OTHER, "windows", 2 * (size_t)context, sizeof *room, &room));
    enum status st = print_windows(data, context, room, print);
    mem_free(env, room);
    return st;
}

enum status agreement_make(struct env *env, const struct agreement_facts *facts,
                           struct agreement *agreement)
{
    struct text *config = &agreement->config;
    uint64_t *prints = agreement->prints;
    enum status st;
    *agreement = (struct agreement){0};
    text_init(config, env);
    config_lines(facts->config_yaml, is_bound, config);
    text_printf(config, "--trace: %s\n", facts->trace ? facts->trace : "");
    text_printf(config, "GPU: %s\n", facts->gpu);
    char cpu[FINGERPRINT_WORDS] = "";
    if (!facts->gpu[0])
        fingerprint_cpu(cpu, sizeof cpu);
    text_printf(config, "CPU (run.kernels and OPENBLAS_CORETYPE choose kernels): %s\n", cpu);
    TRY_OR(undo, config->status);
    TRY_OR(undo, fingerprint_binary(env, &prints[AGREEMENT_BINARY]));
    prints[AGREEMENT_CONFIG] = XXH3_64bits(config->data, config->bytes);
    if (facts->data)
        TRY_OR(undo,
               agreement_print_data(env, facts->data, facts->context, &prints[AGREEMENT_DATA]));
    if (facts->model)
        TRY_OR(undo, model_weights_fingerprint(env, facts->model, &prints[AGREEMENT_MODEL]));
    return STATUS_OK;
undo:
    agreement_free(agreement);
    return st;
}

void agreement_free(struct agreement *agreement)
{
    if (agreement->config.env != NULL)
        text_free(&agreement->config);
    *agreement = (struct agreement){0};
}

/* --- which ranks differ --------------------------------------------------------------------- */

/* The lowest rank with the most common value; -1 = all are the same. */
static int find_model(const uint64_t (*all)[AGREEMENT_PARTS], int size, int part)
{
    int best = 0, most = 0;
    for (int r = 0; r < size && most < size; r++) {
        int same = 0;
        for (int other = 0; other < size; other++)
            same += all[other][part] == all[r][part];
        if (same > most)
            best = r, most = same;
    }
    return most == size ? -1 : best;
}

/* Format "rank 2 has" or "ranks 1, 2, 3 and 9 more have"; *first = the first of these ranks. */
static void name_ranks(const uint64_t (*all)[AGREEMENT_PARTS], int size, int part, int model,
                       char *out, size_t bytes, int *first)
{
    char list[256] = "";
    size_t used = 0;
    int count = 0;
    *first = -1;
    for (int r = 0; r < size; r++) {
        if (all[r][part] == all[model][part])
            continue;
        *first = *first < 0 ? r : *first;
        if (count++ < MOST_LISTED)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%d", used ? ", " : "", r);
    }
    if (count > MOST_LISTED)
        snprintf(list + used, sizeof list - used, " and %d more", count - MOST_LISTED);
    snprintf(out, bytes, "rank%s %s %s", count == 1 ? "" : "s", list, count == 1 ? "has" : "have");
}

/* --- what differs --------------------------------------------------------------------------- */

/* Format the first line in which the two texts differ. */
static void first_difference(const char *a, const char *b, char *out, size_t bytes)
{
    while (*a && *b) {
        size_t a_line = strcspn(a, "\n"), b_line = strcspn(b, "\n");
        if (a_line != b_line || memcmp(a, b, a_line) != 0)
            break;
        a += a_line + (a[a_line] == '\n');
        b += b_line + (b[b_line] == '\n');
    }
    snprintf(out, bytes, "'%.*s' there, '%.*s'", (int)strcspn(a, "\n"), a, (int)strcspn(b, "\n"),
             b);
}

/* Exchange all configurations. `out` receives the line in which ranks `there` and `model`
 * differ. */
static enum status find_key(const struct agreement *mine, struct comm *comm, int there, int model,
                            char *out, size_t bytes)
{
    struct env *env = mine->config.env;
    int size = comm_size(comm);
    int64_t own = (int64_t)mine->config.bytes + 1, room = own, *lengths;
    char *texts = NULL, *text = NULL;
    enum status st;
    TRY(mem_alloc_array(env, MEM_OTHER, "lengths", (size_t)size, sizeof *lengths, &lengths));
    TRY_OR(done, comm_exchange(comm, &own, sizeof own, lengths));
    for (int r = 0; r < size; r++)
        room = lengths[r] > room ? lengths[r] : room;
    TRY_OR(done, mem_alloc(env, MEM_OTHER, "configuration", (size_t)room, &text));
    TRY_OR(done,
           mem_alloc_array(env, MEM_OTHER, "configurations", (size_t)size, (size_t)room, &texts));
    memcpy(text, mine->config.data, mine->config.bytes);
    TRY_OR(done, comm_exchange(comm, text, (size_t)room, texts));
    first_difference(texts + there * room, texts + model * room, out, bytes);
done:
    mem_free(env, texts);
    mem_free(env, text);
    mem_free(env, lengths);
    return st;
}

static enum status explain(const struct agreement *mine, struct comm *comm, int part,
                           const uint64_t (*all)[AGREEMENT_PARTS], int model)
{
    struct env *env = mine->config.env;
    char who[320], lines[400];
    int first;
    name_ranks(all, comm_size(comm), part, model, who, sizeof who, &first);
    switch (part) {
    case AGREEMENT_BINARY:
        return FAIL(env, CONFIG,
                    "%s another build of sifr than rank %d; start the same binary everywhere", who,
                    model);
    case AGREEMENT_CONFIG:
        TRY(find_key(mine, comm, first, model, lines, sizeof lines));
        return FAIL(env, CONFIG, "%s another configuration than rank %d: %s", who, model, lines);
    case AGREEMENT_MODEL:
        return FAIL(env, CONFIG,
                    "%s another model than rank %d: the files of model.path do not hold the same "
                    "weights",
                    who, model);
    default:
        return FAIL(env, CONFIG,
                    "%s other data than rank %d: the files of data.* do not hold the same tokens",
                    who, model);
    }
}

enum status agreement_check(const struct agreement *mine, struct comm *comm)
{
    struct env *env = mine->config.env;
    int size = comm_size(comm);
    uint64_t(*all)[AGREEMENT_PARTS];
    TRY(mem_alloc_array(env, MEM_OTHER, "agreement", (size_t)size, sizeof *all, &all));
    enum status st = comm_exchange(comm, mine->prints, sizeof mine->prints, all);
    for (int part = 0; st == STATUS_OK && part < AGREEMENT_PARTS; part++) {
        int model = find_model((const uint64_t(*)[AGREEMENT_PARTS])all, size, part);
        if (model >= 0)
            st = explain(mine, comm, part, (const uint64_t(*)[AGREEMENT_PARTS])all, model);
    }
    if (st == STATUS_CONFIG)
        comm_barrier(comm); /* no rank leaves before all have the result; the status is kept */
    mem_free(env, all);
    return st;
}
