/* roster -- which ranks of a job compute micro-batches (workers) and which hold shards (owners).
 *
 *     ZeRO               workers are ranks 0 .. N-1, and all of them are owners
 *     parameter server   workers are ranks 0 .. N-S-1, owners are the last S ranks
 *
 * Several copies of the state may exist. With G owners per copy, owner o holds shard o mod G. The
 * owners that hold the same shard share the work of summing its gradient: each sums one reduce
 * shard, so every element is summed exactly once.
 *
 *     6 owners, 2 copies    shard 0         shard 1         shard 2
 *     held by owners        0, 3            1, 4            2, 5
 *     summed by             0     | 3       1     | 4       2     | 5
 *
 * Micro-batch m of a step runs on worker m mod W in round m / W. In a short last round, and where
 * there are more workers than micro-batches, the remaining workers are idle: they take part in
 * every exchange and contribute nothing.
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
    int copies; /* of the state, each held by a group of consecutive owners */
};

struct roster roster_of(int rank, int size, int servers);

bool roster_is_worker(const struct roster *roster);
/* The shard that `rank` holds, and the reduce shard that it sums; -1: none. */
int roster_shard(const struct roster *roster, int rank);
int roster_reduce_shard(const struct roster *roster, int rank);
int roster_reduce_shard_rank(const struct roster *roster, int reduce_shard); /* its owner */
/* Every rank is a worker, and rank r sums reduce shard r. */
bool roster_is_even(const struct roster *roster);
int roster_shards(const struct roster *roster); /* shards of a copy */
int64_t roster_rounds(const struct roster *roster, int64_t micro_batches);
/* Workers that have a micro-batch in this round. */
int roster_active(const struct roster *roster, int64_t micro_batches, int64_t round);
/* The micro-batch of this rank in this round; -1: it is idle. */
int64_t roster_micro_batch(const struct roster *roster, int64_t micro_batches, int64_t round);

#endif
