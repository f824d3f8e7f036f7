/* roster -- arithmetic over ranks; see roster.h. */
#include "zero/roster.h"

struct roster roster_of(int rank, int size, int servers)
{
    int owners = servers > 0 ? servers : size;
    return (struct roster){.rank = rank,
                           .size = size,
                           .workers = size - servers,
                           .owners = owners,
                           .first_owner = size - owners,
                           .copies = 1};
}

bool roster_is_worker(const struct roster *r)
{
    return r->rank < r->workers;
}

int roster_shards(const struct roster *r)
{
    return r->owners / r->copies;
}

int roster_shard(const struct roster *r, int rank)
{
    int owner = rank - r->first_owner;
    return owner >= 0 ? owner % roster_shards(r) : -1;
}

int roster_reduce_shard(const struct roster *r, int rank)
{
    int owner = rank - r->first_owner;
    return owner >= 0 ? roster_shard(r, rank) * r->copies + owner / roster_shards(r) : -1;
}

int roster_reduce_shard_rank(const struct roster *r, int reduce_shard)
{
    return r->first_owner + reduce_shard % r->copies * roster_shards(r) + reduce_shard / r->copies;
}

bool roster_is_even(const struct roster *r)
{
    return r->workers == r->size && (r->copies == 1 || roster_shards(r) == 1);
}

int64_t roster_rounds(const struct roster *r, int64_t micro_batches)
{
    return (micro_batches + r->workers - 1) / r->workers;
}

int roster_active(const struct roster *r, int64_t micro_batches, int64_t round)
{
    int64_t left = micro_batches - round * r->workers;
    return left < r->workers ? (int)left : r->workers;
}

int64_t roster_micro_batch(const struct roster *r, int64_t micro_batches, int64_t round)
{
    int64_t m = round * r->workers + r->rank;
    return roster_is_worker(r) && m < micro_batches ? m : -1;
}
