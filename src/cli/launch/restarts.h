/* restarts -- a run whose ranks are started again from its last complete checkpoint after one of
 * them has died.
 *
 * Only deaths count (launch.h): a rank that was killed, crashed, or hung and was ended. A stop, a
 * configuration that is refused, divergence, and a disk that is full would be the same again. A run
 * that comes no further (no larger step, no newer checkpoint) three restarts in a row is given up.
 */
#ifndef CLI_RESTARTS_H
#define CLI_RESTARTS_H
#include "cli/launch/launch.h"

struct restarts_order {
    const char *folder; /* of the run */
    int64_t most;       /* restarts; 0 = none */
    int ranks;
    int fewer;          /* so many ranks fewer at each restart */
    bool fresh;         /* an earlier run in the folder is to be moved aside: once */
    double max_seconds; /* of all attempts together; 0 = no limit */
};

struct restarts_attempt {
    bool again; /* it is a restart; what follows then stands against what the user has said */
    int ranks;
    bool fresh;
    double max_seconds; /* what is left of them; 0 = no limit */
};

typedef enum status restarts_start_fn(void *user, const struct restarts_attempt *attempt,
                                      struct launch_end *end);

/* Until an attempt ends otherwise than by a death, or no other is left. Each restart is said in one
 * line, and so is the failure that is the end. */
enum status restarts_run(struct cli *cli, const struct restarts_order *order,
                         restarts_start_fn *start, void *user);

#endif
