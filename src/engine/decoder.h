/* decoder -- text one token after another, with a cache of keys and values. */
#ifndef ENGINE_DECODER_H
#define ENGINE_DECODER_H
#include "engine/engine.h"

struct decoder;
/* One sequence of at most `tokens` positions; prompts are fed `chunk` tokens at a time at most.
 * `pipe` (borrowed; NULL: the graph is the whole model): tokens go from stage to stage, and all of
 * them get the logits. `group` (borrowed; NULL: this rank alone): the tensor-parallel ranks. */
enum status decoder_create(struct ops *ops, struct stream *stream, const struct unit_graph *graph,
                           struct zero *zero, const struct engine_pipe *pipe, struct comm *group,
                           int64_t tokens, int64_t chunk, struct decoder **decoder);
void decoder_destroy(struct decoder *decoder);
void decoder_reset(struct decoder *decoder); /* position 0, empty cache */
int64_t decoder_position(const struct decoder *decoder);
/* Feed `count` tokens after those already fed; *logits (V, host, owned by the decoder) are those
 * after the last one. */
enum status decoder_feed(struct decoder *decoder, const int32_t *tokens, int64_t count,
                         const float **logits);

#endif
