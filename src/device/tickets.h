/* tickets -- the host side of an event, for any kind of stream.
 *
 * A record takes the next ticket and passes it when its stream reaches the record. A wait is for
 * the newest ticket at the time the wait was enqueued, so recording an event twice before a stream
 * reaches it loses nothing. Records and waits that streams have not reached yet are the event's
 * users; closing waits until there are none. The back end defines what passing a ticket means.
 */
#ifndef DEVICE_TICKETS_H
#define DEVICE_TICKETS_H
#include <pthread.h>
#include "device/device_impl.h"

struct tickets {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t recorded, passed; /* newest ticket taken, newest ticket passed */
    int users;                /* records and waits that streams have not reached */
};

void tickets_open(struct tickets *tickets);
void tickets_close(struct tickets *tickets); /* waits until there are no users */

/* The caller becomes a user, with a new ticket or with the newest. */
int64_t tickets_record(struct tickets *tickets);
int64_t tickets_newest(struct tickets *tickets);
/* End a use: the stream has reached the record, or its wait is over. */
void tickets_pass(struct tickets *tickets, int64_t ticket);
void tickets_leave(struct tickets *tickets);
/* Sleep until the ticket has passed; returns immediately when the stream has failed. The time
 * counts as waiting time of the stream. */
void tickets_await(struct tickets *tickets, int64_t ticket, struct stream *stream);

#endif
