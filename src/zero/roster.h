/* roster -- who computes micro-batches and who owns slices, among the ranks of one job.
 *
 *     ZeRO               workers 0 .. N-1, owners the same ranks
 *     parameter server   workers 0 .. N-S-1, owners the last S ranks
 *
 * The owners of one copy hold a shard of it each: owner o has shard o mod G, G being the owners
 * of a copy. A shard is summed in shares, one by each of the owners that hold it, so that every
 * element is summed once:
 *
 *     6 owners, 2 copies    shard 0         shard 1         shard 2
 *     held by owners        0, 3            1, 4            2, 5
 *     summed by             0     | 3       1     | 4       2     | 5
 *
 * Micro-batch m of a step runs on worker m mod W, in round m / W. In a short last round (also
 * when there are more workers than micro-batches) the rest are idle: they join every exchange
 * and contribute nothing.
 */
#ifndef ZERO_ROSTER_H
#define ZERO_ROSTER_H
#include <stdbool.h>
#include <stdint.h>

struct roster {
    int rank, size;
    int workers; /* ranks 0 .. workers-1 */
    int owners;  /* ranks first_owner .. size-1 */
    int first_owner;
    int copies; /* of the state: so many groups of neighbouring owners, each with a whole one */
};

struct roster roster_of(int rank, int size, int servers);

bool roster_is_worker(const struct roster *roster);
/* Which shard of a copy `rank` holds, and which share of everything it sums; -1: none. */
int roster_shard(const struct roster *roster, int rank);
int roster_reduce_shard(const struct roster *roster, int rank);
int roster_reduce_shard_rank(const struct roster *roster, int reduce_shard); /* who sums it */
/* Every rank is a worker and sums the share of its own number. */
bool roster_is_even(const struct roster *roster);
int roster_shards(const struct roster *roster); /* of a copy */
int64_t roster_rounds(const struct roster *roster, int64_t micro_batches);
/* Workers that have a micro-batch in this round. */
int roster_active(const struct roster *roster, int64_t micro_batches, int64_t round);
/* The micro-batch of this rank in this round, -1: none. */
int64_t roster_micro_batch(const struct roster *roster, int64_t micro_batches, int64_t round);

#endif
