/* calendar -- when a link or a disk of a simulated machine is busy.
 *
 * Streams book work in the order of the calls, which is not that of the simulated time: one stream
 * may book far ahead of another. So work fills what is left free from its time on, in several parts
 * if it must. What is busy never carries twice, and what was booked stays as it is.
 */
#ifndef DEVICE_DRY_CALENDAR_H
#define DEVICE_DRY_CALENDAR_H

enum { CALENDAR_SPANS = 256 }; /* beyond, the oldest gaps count as busy */

struct calendar {
    int count;
    struct {
        double from, until;
    } busy[CALENDAR_SPANS]; /* in order, apart */
};

/* Book `seconds` of work from time `at` on; returns when it is done. */
double calendar_book(struct calendar *calendar, double at, double seconds);

#endif
