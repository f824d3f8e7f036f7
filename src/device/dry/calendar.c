/* calendar -- see the header. */
#include "device/dry/calendar.h"

#include <math.h>
#include <string.h>

/* Replace spans first .. end - 1 by one. */
static void replace(struct calendar *c, int first, int end, double from, double until)
{
    if (first == end && c->count == CALENDAR_SPANS) { /* no room: close the oldest gap */
        if (first == 0) {
            c->busy[0].from = from;
            return;
        }
        c->busy[1].from = c->busy[0].from;
        memmove(c->busy, c->busy + 1, (size_t)--c->count * sizeof *c->busy);
        if (--first == 0) /* it was in that gap */
            return;
        end = first;
    }
    memmove(c->busy + first + 1, c->busy + end, (size_t)(c->count - end) * sizeof *c->busy);
    c->count += first + 1 - end;
    c->busy[first].from = from;
    c->busy[first].until = until;
}

double calendar_book(struct calendar *c, double at, double seconds)
{
    int first = c->count, end;
    double done = at;
    if (seconds <= 0)
        return at;
    while (first > 0 && c->busy[first - 1].until >= at) /* mostly, work is late in the calendar */
        first--;
    for (end = first; end < c->count && c->busy[end].from <= done + seconds; end++) {
        seconds -= fmax(0.0, c->busy[end].from - done);
        done = fmax(done, c->busy[end].until);
    }
    done += seconds;
    replace(c, first, end, first < end ? fmin(at, c->busy[first].from) : at, done);
    return done;
}
