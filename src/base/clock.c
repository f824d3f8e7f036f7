/* clock -- clock_gettime as seconds. */
#include "base/clock.h"
#include <time.h>

static double seconds(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double clock_seconds(void)
{
    return seconds(CLOCK_MONOTONIC);
}

double clock_wall(void)
{
    return seconds(CLOCK_REALTIME);
}

void clock_sleep(double seconds)
{
    struct timespec span = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    nanosleep(&span, NULL);
}
