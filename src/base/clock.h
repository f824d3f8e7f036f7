/* clock -- the monotonic clock and the wall clock, in seconds. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

double clock_seconds(void); /* monotonic */
double clock_wall(void);    /* seconds since 1970 */

#endif
