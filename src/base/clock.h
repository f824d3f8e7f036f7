/* clock -- the monotonic clock, the wall clock and a sleep, in seconds. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

double clock_seconds(void);       /* monotonic */
double clock_wall(void);          /* seconds since 1970 */
void clock_sleep(double seconds); /* a signal may end it early */

#endif
