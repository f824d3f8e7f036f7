/* comm_self -- one rank alone: no messages, no threads, no MPI.
 *
 * Collectives of one rank move nothing between ranks, so there is never a swap, and nobody to ask.
 */
#include "comm/comm_impl.h"

static enum status self_join(struct comm_home *home, const struct comm_seat *seat)
{
    (void)seat;
    home->rank = 0;
    home->size = 1;
    return STATUS_OK;
}

static void self_quit(struct comm_home *home)
{
    (void)home;
}

static enum status self_open(struct comm *comm, struct comm *parent, int colour)
{
    (void)comm, (void)parent, (void)colour;
    return STATUS_OK;
}

static void self_close(struct comm *comm)
{
    (void)comm;
}

static void self_spread(struct comm_home *home, const char *text)
{
    comm_home_fail(home, text);
}

const struct comm_backend comm_self = {
    .name = "self",
    .home_bytes = sizeof(struct comm_home),
    .comm_bytes = sizeof(struct comm),
    .join = self_join,
    .quit = self_quit,
    .open = self_open,
    .close = self_close,
    .spread = self_spread,
};
