/* beside -- the stream on which tensor-parallel ranks meet while they compute: what unit passes are
 * lent for it (struct unit_beside in unit/unit.h). */
#ifndef ENGINE_BESIDE_H
#define ENGINE_BESIDE_H
#include "comm/comm.h"
#include "unit/unit.h"

/* For calls over `group`. The caller destroys *beside, before the group. */
enum status beside_create(struct device *device, struct comm *group, struct unit_beside **beside);
void beside_destroy(struct device *device, struct unit_beside *beside); /* NULL is fine */

#endif
