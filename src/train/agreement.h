/* agreement -- all ranks run the same program with the same configuration on the same data, or
 * none of them begins.
 *
 * Each rank makes three fingerprints: of the binary, of the resolved configuration (without what
 * may differ: threads, how often a line is printed, time limits) and of the data (its sizes and a
 * sample of its windows: all of them when the data is small). They are exchanged as the first thing
 * after the ranks have found each other; the message says what differs, where, and for a key how.
 */
#ifndef TRAIN_AGREEMENT_H
#define TRAIN_AGREEMENT_H
#include "base/text.h"
#include "comm/comm.h"
#include "train/dataset.h"

enum agreement_part { AGREEMENT_BINARY, AGREEMENT_CONFIG, AGREEMENT_DATA, AGREEMENT_PARTS };

struct agreement { /* open; agreement_free it */
    uint64_t prints[AGREEMENT_PARTS];
    struct text config; /* one "section.key: value" a line */
};

/* `config_yaml` is the resolved configuration as text; `trace` the steps to trace, NULL = none;
 * `card` what this rank computes on, "" = its processors. */
enum status agreement_make(struct env *env, const char *config_yaml, const char *trace,
                           const char *card, const struct dataset *data, int64_t context,
                           struct agreement *agreement);
void agreement_free(struct agreement *agreement); /* zeroed is fine */

/* STATUS_CONFIG on every rank when something differs. Collective. */
enum status agreement_check(const struct agreement *mine, struct comm *comm);

#endif
