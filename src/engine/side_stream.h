/* beside -- the stream on which tensor-parallel ranks meet while they compute: what unit passes are
 * lent for it (struct unit_side_stream in unit/unit.h). */
#ifndef ENGINE_SIDE_STREAM_H
#define ENGINE_SIDE_STREAM_H
#include "comm/comm.h"
#include "unit/unit.h"

/* For calls over `group`. The caller destroys *beside, before the group. */
enum status side_stream_create(struct device *device, struct comm *group,
                               struct unit_side_stream **side_stream);
void side_stream_destroy(struct device *device,
                         struct unit_side_stream *side_stream); /* NULL is fine */

#endif
