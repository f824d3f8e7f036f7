/* agreement -- checks that all ranks have the same program, configuration, data and model; if not,
 * all of them fail before they begin.
 *
 * Each rank computes four fingerprints: of the binary, of the resolved configuration (without keys
 * that may differ: threads, log interval, time limits), of the data (its sizes and a sample of its
 * windows, all of them if the data is small) and of the files of model.path (likewise). They are
 * exchanged before anything is built; the message names what differs and on which ranks, and for a
 * key both values.
 */
#ifndef TRAIN_AGREEMENT_H
#define TRAIN_AGREEMENT_H
#include "base/text.h"
#include "comm/comm.h"
#include "train/data/dataset.h"
#include "train/models/model_source.h"

enum agreement_part {
    AGREEMENT_BINARY,
    AGREEMENT_CONFIG,
    AGREEMENT_DATA,
    AGREEMENT_MODEL,
    AGREEMENT_PARTS
};

struct agreement { /* open; agreement_free it */
    uint64_t prints[AGREEMENT_PARTS];
    struct text config; /* lines "section.key: value" */
};

struct agreement_facts {        /* borrowed for the call */
    const char *config_yaml;    /* the resolved configuration as text */
    const char *trace;          /* the steps to trace; NULL = none */
    const char *gpu;            /* name of the GPU of this rank; "" = it computes on the CPU */
    const struct dataset *data; /* NULL = none is read */
    int64_t context;            /* tokens per window */
    const struct model_source *model; /* NULL if the model is initialized at random */
};
enum status agreement_make(struct env *env, const struct agreement_facts *facts,
                           struct agreement *agreement);
void agreement_free(struct agreement *agreement); /* zeroed is fine */

/* The fingerprint of only the data. */
enum status agreement_print_data(struct env *env, const struct dataset *data, int64_t context,
                                 uint64_t *print);

/* STATUS_CONFIG on every rank if something differs. Collective. */
enum status agreement_check(const struct agreement *mine, struct comm *comm);

#endif
