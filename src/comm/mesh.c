/* mesh -- the arithmetic of ranks, the three groups, and the printed map. */
#include "comm/mesh.h"
#include <stdio.h>
#include <string.h>
#include "comm/comm_impl.h"

/* The largest divisor of `count` that is at most `most`. */
static int divisor_below(int count, int most)
{
    int d = most < count ? most : count;
    while (count % d != 0)
        d--;
    return d;
}

/* A value does not divide `count`: say which nearby values do. */
static enum status refuse(struct env *env, const char *key, int value, const char *what, int count)
{
    int below = divisor_below(count, value);
    if (value > count)
        return FAIL(env, CONFIG,
                    "%s=%d needs more than the %d %s of this job; start more (-n), or try %d", key,
                    value, count, what, below);
    int above = value;
    while (count % above != 0)
        above++;
    return FAIL(env, CONFIG, "%s=%d does not divide %d %s; try %d or %d", key, value, count, what,
                below, above);
}

enum status mesh_of(struct env *env, int size, int rank, int tp, int pp, struct mesh *mesh)
{
    char what[64];
    CHECK(size >= 1 && rank >= 0 && rank < size);
    if (tp < 1)
        return FAIL(env, CONFIG, "parallel.tp=%d is out of range; use 1 or more", tp);
    if (pp < 1)
        return FAIL(env, CONFIG, "parallel.pp=%d is out of range; use 1 or more", pp);
    if (size % tp != 0)
        return refuse(env, "parallel.tp", tp, size == 1 ? "rank" : "ranks", size);
    int groups = size / tp;
    if (tp == 1)
        snprintf(what, sizeof what, "%s", size == 1 ? "rank" : "ranks");
    else
        snprintf(what, sizeof what, "%s of tp %d (%d ranks)", groups == 1 ? "group" : "groups", tp,
                 size);
    if (groups % pp != 0)
        return refuse(env, "parallel.pp", pp, what, groups);
    *mesh = (struct mesh){.size = size,
                          .tp = tp,
                          .pp = pp,
                          .dp = groups / pp,
                          .rank = rank,
                          .t = rank % tp,
                          .p = rank / tp % pp,
                          .d = rank / tp / pp};
    return STATUS_OK;
}

int mesh_rank(const struct mesh *mesh, int d, int p, int t)
{
    CHECK(d >= 0 && d < mesh->dp && p >= 0 && p < mesh->pp && t >= 0 && t < mesh->tp);
    return (d * mesh->pp + p) * mesh->tp + t;
}

/* --- nodes ---------------------------------------------------------------------------------- */

/* The largest group size that divides every run of consecutive ranks on one node. */
static int group_that_fits(const struct mesh *mesh, const char *const *hosts)
{
    int fits = 0;
    for (int first = 0, r = 1; r <= mesh->size; r++) {
        if (r < mesh->size && strcmp(hosts[r], hosts[first]) == 0)
            continue;
        for (int run = r - first; run != 0;) { /* fits = greatest common divisor of both */
            int rest = fits % run;
            fits = run;
            run = rest;
        }
        first = r;
    }
    return fits;
}

enum status mesh_check_hosts(struct env *env, const struct mesh *mesh, const char *const *hosts)
{
    for (int r = 0; r < mesh->size; r++) {
        int first = r - r % mesh->tp;
        if (strcmp(hosts[r], hosts[first]) == 0)
            continue;
        int fits = divisor_below(group_that_fits(mesh, hosts), mesh->tp);
        return FAIL(
            env, CONFIG,
            "parallel.tp=%d: ranks %d to %d form one TP group and must be on one node, but rank "
            "%d is on '%s' and rank %d on '%s'; with this placement, try %d",
            mesh->tp, first, first + mesh->tp - 1, first, hosts[first], r, hosts[r], fits);
    }
    return STATUS_OK;
}

/* --- groups --------------------------------------------------------------------------------- */

enum axis { AXIS_TP, AXIS_PP, AXIS_DP };

/* The number of a rank's group along an axis: its coordinates on the other two. */
static int colour(const struct mesh *mesh, enum axis axis, int rank)
{
    int t = rank % mesh->tp, p = rank / mesh->tp % mesh->pp, d = rank / mesh->tp / mesh->pp;
    switch (axis) {
    case AXIS_TP: return d * mesh->pp + p;
    case AXIS_PP: return d * mesh->tp + t;
    default: return p * mesh->tp + t;
    }
}

static enum status split(struct comm *world, const struct mesh *mesh, enum axis axis,
                         const char *name, int *colours, struct comm **group)
{
    for (int r = 0; r < mesh->size; r++)
        colours[r] = colour(mesh, axis, r);
    return comm_split_known(world, colours, name, group);
}

enum status mesh_groups_create(struct comm *world, const struct mesh *mesh,
                               struct mesh_groups *groups)
{
    enum status st;
    int *colours;
    struct env *env = world->env;
    struct mesh_groups g = {0};
    CHECK_EQ(comm_size(world), mesh->size);
    CHECK_EQ(comm_rank(world), mesh->rank);
    TRY(mem_alloc_array(env, MEM_OTHER, "mesh", (size_t)mesh->size, sizeof *colours, &colours));
    TRY_OR(undo, split(world, mesh, AXIS_TP, "tp", colours, &g.tp));
    TRY_OR(undo, split(world, mesh, AXIS_PP, "pp", colours, &g.pp));
    TRY_OR(undo, split(world, mesh, AXIS_DP, "dp", colours, &g.dp));
    CHECK_EQ(comm_rank(g.tp), mesh->t);
    CHECK_EQ(comm_rank(g.pp), mesh->p);
    CHECK_EQ(comm_rank(g.dp), mesh->d);
    mem_free(env, colours);
    *groups = g;
    return STATUS_OK;
undo:
    mesh_groups_free(&g);
    mem_free(env, colours);
    return st;
}

void mesh_groups_free(struct mesh_groups *groups)
{
    comm_destroy(groups->dp);
    comm_destroy(groups->pp);
    comm_destroy(groups->tp);
    *groups = (struct mesh_groups){0};
}

/* --- the map -------------------------------------------------------------------------------- */

enum { MOST_ROWS = 16, MOST_COLUMNS = 8 };

/* Whether item i is shown, when at most `most` are: 1 = yes, 0 = no, -1 = dots in its place. The
 * first few and the last are shown. */
static int shown(int i, int count, int most)
{
    if (count <= most || i < most - 2 || i == count - 1)
        return 1;
    return i == most - 2 ? -1 : 0;
}

/* One line of the map: the ranks of copy `d`, or, for -1, the names of the stages. */
static void print_row(const struct mesh *mesh, int d, struct text *text)
{
    for (int p = 0; p < mesh->pp; p++) {
        int show = shown(p, mesh->pp, MOST_COLUMNS);
        int first = d < 0 ? 0 : mesh_rank(mesh, d, p, 0);
        char cell[32];
        if (d < 0)
            snprintf(cell, sizeof cell, "stage %d", p);
        else if (mesh->tp == 1)
            snprintf(cell, sizeof cell, "%d", first);
        else
            snprintf(cell, sizeof cell, "%d-%d", first, first + mesh->tp - 1);
        if (show > 0)
            text_printf(text, "  %13s", cell);
        else if (show < 0)
            text_add(text, "  ...");
    }
    text_add(text, "\n");
}

void mesh_print(const struct mesh *mesh, struct text *text)
{
    text_printf(text, "%d rank%s = dp %d x pp %d x tp %d\n%14s", mesh->size,
                mesh->size == 1 ? "" : "s", mesh->dp, mesh->pp, mesh->tp, "");
    print_row(mesh, -1, text);
    for (int d = 0; d < mesh->dp; d++) {
        int show = shown(d, mesh->dp, MOST_ROWS);
        if (show > 0) {
            text_printf(text, "copy %-9d", d);
            print_row(mesh, d, text);
        } else if (show < 0)
            text_add(text, "...\n");
    }
}
