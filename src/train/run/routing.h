/* routing -- how a SARS model routes its tokens: figures of a step, for each layer and as the mean
 * over the layers, from the statistic of the step (model.h).
 *
 *     active     share of the neurons that are active, over all tokens
 *     dead       share of the neurons that are active for no token
 *     entropy    of the routing of a token, in nats: the second loss, without its weight
 *     goodness   of a neuron for a token
 *     gated      share of the rows whose gradient the gate has set to 0
 *
 * Each is a mean over the four projections q, k, v and o. Reading a step allocates nothing.
 */
#ifndef TRAIN_ROUTING_H
#define TRAIN_ROUTING_H
#include "model/model.h"

enum routing_figure {
    ROUTING_ACTIVE,
    ROUTING_DEAD,
    ROUTING_ENTROPY,
    ROUTING_GOODNESS,
    ROUTING_GATED, /* NAN with sars.gate=local, which may keep a row of one micro-batch only */
    ROUTING_FIGURES
};
const char *routing_word(enum routing_figure figure); /* "active" */

struct routing_report;

/* *routing = NULL if the model does not route. The caller destroys it. */
enum status routing_create(struct env *env, const struct model_config *model,
                           struct routing_report **routing);
void routing_destroy(struct routing_report *routing); /* NULL is fine */

/* Take the figures of a step of `tokens` tokens from its statistic (engine_statistics). */
void routing_read(struct routing_report *routing, const float *statistic, int64_t tokens);

int64_t routing_layers(const struct routing_report *routing);
enum { ROUTING_MEAN = -1 }; /* as a layer: the mean over all */
double routing_figure(const struct routing_report *routing, int64_t layer,
                      enum routing_figure figure);
double
routing_meta_loss(const struct routing_report *routing); /* the second loss, with its weight */

/* {"meta_loss":...,"meta_norm":...,"active":...,...,"layers":{"active":[...],...}}; null for
 * unknown values. `meta_norm` is the norm of the second loss's gradient. */
void routing_print(const struct routing_report *routing, double meta_norm, struct text *text);
size_t routing_print_bytes(const struct routing_report *routing); /* at most, with any values */

#endif
