/* tickets -- the part of an event that the host knows, whatever streams are made of.
 *
 * A record takes the next ticket and, when its stream comes to it, passes it; a wait is for the
 * ticket that was newest when it was asked for. So an event that is recorded twice before anybody
 * came to it loses nothing. Records and waits that streams have not come to yet are the event's
 * users: it is closed when there are none. What passing a ticket means is the back end's.
 */
#ifndef DEVICE_TICKETS_H
#define DEVICE_TICKETS_H
#include <pthread.h>
#include "device/device_impl.h"

struct tickets {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t recorded, passed; /* newest ticket taken, newest ticket passed */
    int users;                /* records and waits that streams have not come to */
};

void tickets_open(struct tickets *tickets);
void tickets_close(struct tickets *tickets); /* waits until there are no users */

/* The caller becomes a user: with a new ticket, or with the newest there is. */
int64_t tickets_record(struct tickets *tickets);
int64_t tickets_newest(struct tickets *tickets);
/* A user's last words: its stream has come to the record, or is done with its wait. */
void tickets_pass(struct tickets *tickets, int64_t ticket);
void tickets_leave(struct tickets *tickets);
/* Sleep until the ticket has passed; at once when the stream has failed. The time counts as the
 * stream's wait. */
void tickets_await(struct tickets *tickets, int64_t ticket, struct stream *stream);

#endif
