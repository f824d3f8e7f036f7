/* decoder -- generates text token by token, with a cache of keys and values.
 *
 * A decoder has rows: sequences of their own, each with its position and its cache. Rows that are
 * fed together share each walk over the units: params that are gathered, or read from far memory,
 * are gathered once for all of them. A row computes the same bits as it would alone. */
#ifndef ENGINE_DECODER_H
#define ENGINE_DECODER_H
#include "engine/engine.h"

struct decoder;
struct decoder_config {
    const struct engine_pipe *pipe; /* borrowed: tokens pass from stage to stage, and all stages get
                                       the logits; NULL: the graph is the whole model */
    struct comm *group;             /* borrowed: the TP group; NULL: one rank */
    int64_t tokens;                 /* positions of the sequence, at most */
    int64_t chunk;                  /* longer prompts are fed in chunks of this many tokens */
    int rows;                       /* sequences at once; 0 = 1 */
};
/* `graph` and `zero` are borrowed and outlive the decoder. */
enum status decoder_create(struct ops *ops, struct stream *stream, const struct unit_graph *graph,
                           struct zero *zero, const struct decoder_config *config,
                           struct decoder **decoder);
void decoder_destroy(struct decoder *decoder);
void decoder_reset(struct decoder *decoder); /* all rows: position 0, empty cache */

/* `count` tokens after those that the row was fed already. `logits` (V, host, owned by the decoder)
 * are those after the last token. */
struct decoder_input {
    int row;
    const int32_t *tokens; /* this and count may be changed */
    int64_t count;
    const float *logits; /* out */
};
/* Feed different rows. */
enum status decoder_feed_rows(struct decoder *decoder, struct decoder_input *inputs, int count);
/* Feed row 0. */
enum status decoder_feed(struct decoder *decoder, const int32_t *tokens, int64_t count,
                         const float **logits);

#endif
