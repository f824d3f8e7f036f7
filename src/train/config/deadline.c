
#include "train/config/deadline.h"
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include "base/clock.h"
#include "comm/launcher.h"

static const double SPARE_SECONDS =
    60; /* margin before the end of a job, for everything that is not measured */

static double unit_seconds(char unit)
{
    switch (unit) {
    case 'd': return 86400;
    case 'h': return 3600;
    case 'm': return 60;
    case 's': return 1;
    default: return 0;
    }
}

bool deadline_parse(const char *text, double *seconds)
{
    double last = INFINITY; /* units must be in descending order */
    *seconds = 0;
    while (*text) {
        char *end;
        if (!isdigit((unsigned char)*text))
            return false;
        double number = strtod(text, &end), unit = unit_seconds(*end);
        if (*end == '\0' && isinf(last))
            unit = 1;
        if (unit == 0 || unit >= last || !isfinite(number))
            return false;
        *seconds += number * unit;
        last = unit;
        text = *end ? end + 1 : end;
    }
    return true;
}

struct deadline deadline_start(const char *max_time)
{
    struct deadline deadline = {INFINITY, INFINITY};
    double seconds = 0, end = launcher_slurm_end_time();
    if (deadline_parse(max_time, &seconds) && seconds > 0)
        deadline.limit = clock_seconds() + seconds;
    if (end > clock_wall()) /* a time in the past belongs to another job */
        deadline.end = clock_seconds() + end - clock_wall();
    return deadline;
}

bool deadline_over(const struct deadline *deadline, double seconds)
{
    double now = clock_seconds();
    return now >= deadline->limit || now + seconds + SPARE_SECONDS >= deadline->end;
}
