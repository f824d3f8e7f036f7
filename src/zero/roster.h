/* roster -- who computes micro-batches and who owns slices, among the ranks of one job.
 *
 *     ZeRO               workers 0 .. N-1, owners the same ranks
 *     parameter server   workers 0 .. N-S-1, owners the last S ranks
 *
 * Micro-batch m of a step runs on worker m mod W, in round m / W. In a short last round (also when
 * there are more workers than micro-batches) the rest are idle: they join every exchange and
 * contribute nothing.
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
};

struct roster roster_of(int rank, int size, int servers);

bool roster_is_worker(const struct roster *roster);
int roster_owner(const struct roster *roster); /* which owner this rank is, -1: none */
int64_t roster_rounds(const struct roster *roster, int64_t micro_batches);
/* Workers that have a micro-batch in this round. */
int roster_active(const struct roster *roster, int64_t micro_batches, int64_t round);
/* The micro-batch of this rank in this round, -1: none. */
int64_t roster_micro_batch(const struct roster *roster, int64_t micro_batches, int64_t round);

#endif
