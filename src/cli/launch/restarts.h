/* restarts -- restarts the ranks of a run from its last complete checkpoint after one of them died.
 *
 * Only deaths count (launch.h): a rank that was killed, crashed, or hung and was killed. A stop, a
 * refused configuration, divergence or a full disk would only happen again. After three restarts in
 * a row without progress (no larger step, no newer checkpoint) there is no further one.
 */
#ifndef CLI_RESTARTS_H
#define CLI_RESTARTS_H
#include "cli/launch/launch.h"

struct restarts_order {
    const char *folder; /* of the run */
    int64_t most;       /* restarts; 0 = none */
    bool fresh;         /* rename an earlier run in the folder, once */
    double max_seconds; /* of all attempts together; 0 = no limit */
};

struct restarts_attempt {
    bool again; /* a restart; then the values below override the user's */
    bool fresh;
    double max_seconds; /* that are left; 0 = no limit */
};

typedef enum status restarts_start_fn(void *user, const struct restarts_attempt *attempt,
                                      struct launch_end *end);

/* Call `start` until an attempt ends otherwise than by a death, or no restart is left. Logs one
 * line for each restart, and one for the failure that ends the run. */
enum status restarts_run(struct cli *cli, const struct restarts_order *order,
                         restarts_start_fn *start, void *user);

#endif
