/* plan_offload -- which state leaves the device when a rank does not fit, and where it goes.
 *
 * Optimizer state, summed gradients and params each stay, or go to the host or to the disk; on the
 * CPU, state is in host memory already, so only the disk is left. All combinations are compared,
 * and the one whose bytes take the least time on their way is taken. Of the optimizer state, the
 * smallest share leaves with which the device is full: the rest of the host is for others.
 *
 * What a rank needs is nearly a sum over what stays and what leaves. So three ranks are built: with
 * everything on the device, without state and sums, and without params, too. They say which
 * combinations are likely to fit. Only these are built, cheapest first, until one does fit.
 */
#include <math.h>
#include <stdio.h>

#include "plan/plan_impl.h"

/* The keys, as they are numbered here, and the places of each. */
enum { OPTIMIZER, GRADS, PARAMS, KEYS, PLACES = FAR_DISK + 1, PLACEMENTS = 27, SHARES = 64 };

bool plan_is_offloaded(const struct plan_request *request)
{
    const struct zero_offload *offload = &request->zero.offload;
    return offload->optimizer != FAR_NONE || offload->grads != FAR_NONE ||
           offload->params != FAR_NONE;
}

char *plan_offload_left(const struct zero_offload *offload, char out[PLAN_OFFLOAD_KEYS])
{
    snprintf(out, PLAN_OFFLOAD_KEYS, "%s%s%s",
             offload->optimizer == FAR_NONE ? " offload.optimizer=disk" : "",
             offload->grads == FAR_NONE ? " offload.grads=disk" : "",
             offload->params == FAR_NONE ? " offload.params=disk" : "");
    return out;
}

bool plan_is_far(const struct plan_request *request, enum far_kind kind)
{
    return kind == FAR_DISK || (kind == FAR_HOST && request->gpu);
}

struct sharding plan_sharding(const struct plan_request *request, int stage)
{
    struct sharding cut = sharding_of(stage);
    cut.params = cut.params || plan_is_far(request, request->zero.offload.params);
    return cut;
}

bool plan_moves_anything(const struct plan_request *request)
{
    return plan_is_offloaded(request) || request->engine.activations != FAR_NONE;
}

static enum far_kind *key_of(struct zero_offload *offload, int key)
{
    enum far_kind *const keys[KEYS] = {&offload->optimizer, &offload->grads, &offload->params};
    return keys[key];
}

static bool has_room(const struct plan_request *request, const struct plan_room *room,
                     enum far_kind kind)
{
    switch (kind) {
    case FAR_HOST: return request->gpu && room->host > 0;
    case FAR_DISK: return room->disk > 0;
    default: return true;
    }
}

static bool is_open(const struct plan_offload_fixed *fixed, int key)
{
    const bool given[KEYS] = {fixed->optimizer, fixed->grads, fixed->params};
    return !given[key];
}

bool plan_may_offload(const struct plan_request *request, const struct plan_room *room,
                      const struct plan_offload_fixed *fixed)
{
    bool any = has_room(request, room, FAR_HOST) || has_room(request, room, FAR_DISK);
    return any && (!fixed->optimizer || !fixed->grads || !fixed->params || !fixed->share);
}

struct zero_offload plan_offload_most(const struct plan_request *request,
                                      const struct plan_room *room,
                                      const struct plan_offload_fixed *fixed)
{
    struct zero_offload most = request->zero.offload;
    for (int key = 0; key < KEYS; key++)
        for (int kind = FAR_HOST; is_open(fixed, key) && kind < PLACES; kind++)
            if (has_room(request, room, (enum far_kind)kind))
                *key_of(&most, key) = (enum far_kind)kind;
    most.share = fixed->share ? most.share : 1;
    return most;
}

/* --- what leaves is how large --------------------------------------------------------------- */

struct sizes {           /* of one rank, in bytes */
    double rest[2];      /* on the device without state and sums; without params, too */
    double device[KEYS]; /* what state and sums take there; of params, `rest` says so */
    double far[KEYS];    /* what each takes elsewhere */
    double host, disk;   /* what is there anyway */
};

static double part(double whole, double a, double b)
{
    return a + b > 0 ? whole * a / (a + b) : 0;
}

static double grows(size_t from, size_t to)
{
    return to > from ? (double)(to - from) : 0;
}

static struct sizes sizes_of(const struct plan_rank *all, const struct plan_rank *params,
                             const struct plan_rank *none)
{
    const size_t *here = all->bytes, *left = params->bytes;
    double state = grows(left[MEM_OPTIMIZER], here[MEM_OPTIMIZER]);
    double sums = grows(left[MEM_GRADS], here[MEM_GRADS]);
    double device = grows(plan_needed_bytes(params), plan_needed_bytes(all));
    size_t before = all->host_bytes + all->disk_bytes;
    size_t between = params->host_bytes + params->disk_bytes;
    double far = grows(before, between);
    return (struct sizes){
        .rest = {(double)plan_needed_bytes(params), (double)plan_needed_bytes(none)},
        .device = {part(device, state, sums), part(device, sums, state)},
        .far = {part(far, state, sums), part(far, sums, state),
                grows(between, none->host_bytes + none->disk_bytes)},
        .host = (double)all->host_bytes,
        .disk = (double)all->disk_bytes};
}

/* sizes (2): of the worker and of the server. `asked` is the request as it was built already. */
static enum status measure(struct env *env, const struct plan_request *request,
                           const struct plan_zero_stage *asked, struct sizes sizes[2])
{
    enum far_kind far = request->gpu ? FAR_HOST : FAR_DISK;
    struct plan_zero_stage stages[3] = {*asked};
    for (int i = plan_is_offloaded(request) ? 0 : 1; i < 3; i++) {
        struct plan_request other = *request;
        struct zero_offload *offload = &other.zero.offload;
        offload->optimizer = offload->grads = i > 0 ? far : FAR_NONE;
        offload->params = i > 1 ? far : FAR_NONE;
        offload->share = 1;
        TRY(plan_worst_memory(env, &other, &stages[i]));
    }
    sizes[0] = sizes_of(&stages[0].worker, &stages[1].worker, &stages[2].worker);
    sizes[1] = sizes_of(&stages[0].server, &stages[1].server, &stages[2].server);
    return STATUS_OK;
}

/* --- the list of placements ----------------------------------------------------------------- */

struct placement {
    struct zero_offload offload;
    double price;   /* bytes that pass the link per step, or as many as take that long */
    double missing; /* bytes, by the estimate */
    bool likely;    /* to fit */
};

/* The least share with which the rest of the state has room on the device. */
static double least_share(const struct sizes *s, const struct zero_offload *o, size_t memory)
{
    double bytes = s->rest[o->params != FAR_NONE] + s->device[OPTIMIZER] +
                   (o->grads == FAR_NONE ? s->device[GRADS] : 0);
    double share = memory > 0 && s->device[OPTIMIZER] > 0
                       ? (bytes - (double)memory) / s->device[OPTIMIZER]
                       : 0;
    return fmin(fmax(ceil(share * SHARES), 1), SHARES) / SHARES;
}

static double beyond(double needed, size_t room)
{
    return room > 0 && needed > (double)room ? needed - (double)room : 0;
}

/* Add a rank's part of the estimate. State passes twice per step, sums twice per micro-batch, and
 * params are read twice per micro-batch and written once. Params count double, since every pass
 * waits for them; the others pass behind it. A disk is slower than the link. */
static void add_rank(struct placement *p, const struct sizes *s, const struct plan_room *room,
                     double rounds)
{
    static const double slower[PLACES] = {[FAR_HOST] = 1, [FAR_DISK] = 16};
    const double passes[KEYS] = {2, 2 * rounds, 2 * (2 * rounds + 1)};
    struct zero_offload o = p->offload;
    double far[PLACES] = {[FAR_HOST] = s->host, [FAR_DISK] = s->disk};
    double share = o.optimizer == FAR_NONE ? 0 : o.share;
    double device = s->rest[o.params != FAR_NONE] + (1 - share) * s->device[OPTIMIZER] +
                    (o.grads == FAR_NONE ? s->device[GRADS] : 0);
    for (int key = 0; key < KEYS; key++) {
        enum far_kind kind = *key_of(&o, key);
        double bytes = s->far[key] * (key == OPTIMIZER ? share : 1);
        far[kind] += bytes;
        p->price += slower[kind] * passes[key] * bytes;
    }
    double missing = beyond(device, room->memory) + beyond(far[FAR_HOST], room->host) +
                     beyond(far[FAR_DISK], room->disk);
    p->missing = fmax(p->missing, missing);
    p->likely = p->likely && missing <= (device + far[FAR_HOST] + far[FAR_DISK]) / 32;
}

static bool is_before(const struct placement *a, const struct placement *b)
{
    if (a->likely != b->likely)
        return a->likely;
    return a->likely ? a->price < b->price : a->missing < b->missing;
}

/* Whether the combination of these places may be used and moves something with every key. */
static bool is_sensible(const struct plan_request *request, const struct plan_room *room,
                        const struct plan_offload_fixed *fixed, const struct sizes sizes[2],
                        struct zero_offload *offload)
{
    struct zero_offload asked = request->zero.offload;
    for (int key = 0; key < KEYS; key++) {
        enum far_kind kind = *key_of(offload, key);
        bool moves = sizes[0].far[key] + sizes[1].far[key] > 0;
        if (!is_open(fixed, key) ? kind != *key_of(&asked, key)
                                 : kind != FAR_NONE && (!moves || !has_room(request, room, kind)))
            return false;
    }
    return true;
}

/* list (PLACEMENTS), the best first. Returns their number. */
static int list_placements(const struct plan_request *request, const struct plan_room *room,
                           const struct plan_offload_fixed *fixed, const struct sizes sizes[2],
                           struct placement *list)
{
    int64_t workers = request->ranks / plan_spread_over(request) - request->zero.servers;
    int64_t rounds = (request->engine.micro_batches + workers - 1) / workers;
    int count = 0;
    for (int i = 0; i < PLACEMENTS; i++) {
        struct placement p = {.offload = request->zero.offload, .likely = true};
        for (int key = 0, digits = i; key < KEYS; key++, digits /= PLACES)
            *key_of(&p.offload, key) = (enum far_kind)(digits % PLACES);
        if (!is_sensible(request, room, fixed, sizes, &p.offload))
            continue;
        if (!fixed->share)
            p.offload.share = fmax(least_share(&sizes[0], &p.offload, room->memory),
                                   least_share(&sizes[1], &p.offload, room->memory));
        for (int r = 0; r < 2; r++)
            add_rank(&p, &sizes[r], room, (double)rounds);
        int at = count++;
        for (; at > 0 && is_before(&p, &list[at - 1]); at--)
            list[at] = list[at - 1];
        list[at] = p;
    }
    return count;
}

/* --- ranks that are built ------------------------------------------------------------------- */

double plan_missing(const struct plan_zero_stage *stage, const struct plan_room *room)
{
    struct plan_room needs = plan_needs(stage);
    return beyond((double)needs.memory, room->memory) + beyond((double)needs.host, room->host) +
           beyond((double)needs.disk, room->disk);
}

/* Build the request. If the share is open, it is an estimate: find the smallest with which the rest
 * of the state has room on the device, first next to the estimate, then by halves. */
static enum status settle(struct env *env, const struct plan_room *room, bool open,
                          struct plan_request *request, struct plan_zero_stage *stage)
{
    enum { NEAR = 2 };
    struct plan_request other = *request;
    int share = (int)lround(request->zero.offload.share * SHARES);
    int low = 0, high = SHARES + 1; /* low is not enough, high is */
    for (int tries = 0; high - low > 1; tries++) {
        struct plan_zero_stage its;
        TRY(plan_worst_memory(env, &other, &its));
        bool stays = plan_fits(&its, &(struct plan_room){.memory = room->memory});
        if (stays || high > SHARES) {
            *request = other;
            *stage = its;
        }
        if (!open)
            break;
        *(stays ? &high : &low) = share;
        share = tries >= NEAR ? (low + high) / 2 : stays ? share - 1 : share + 1;
        other.zero.offload.share = (double)share / SHARES;
    }
    return STATUS_OK;
}

enum status plan_offload(struct env *env, const struct plan_room *room,
                         const struct plan_offload_fixed *fixed, struct plan_request *request,
                         struct plan_zero_stage *stage, bool *fits)
{
    const struct plan_request asked = *request;
    struct placement list[PLACEMENTS];
    struct sizes sizes[2];
    TRY(plan_worst_memory(env, request, stage));
    *fits = plan_fits(stage, room);
    if (*fits || !plan_may_offload(request, room, fixed))
        return STATUS_OK;
    TRY(measure(env, request, stage, sizes));
    int count = list_placements(request, room, fixed, sizes, list);
    for (int i = 0; !*fits && i < count && (i == 0 || list[i].likely); i++) {
        struct plan_request other = asked;
        struct plan_zero_stage its;
        other.zero.offload = list[i].offload;
        bool open = !fixed->share && other.zero.offload.optimizer != FAR_NONE;
        TRY(settle(env, room, open, &other, &its));
        if (plan_missing(&its, room) < plan_missing(stage, room)) {
            *request = other;
            *stage = its;
        }
        *fits = plan_fits(stage, room);
    }
    return STATUS_OK;
}
