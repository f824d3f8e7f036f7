/* threads -- the lesser of cores and quota, unless OMP_NUM_THREADS is set. */
#include "base/threads.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/cgroup.h"

enum { MOST_THREADS = 4096 }; /* as run.threads */

/* The first number of OMP_NUM_THREADS, which may be a list with one for each level; 0 = unset, or
 * not a number. */
static int from_openmp(const char *openmp)
{
    char *end = NULL;
    long count = openmp ? strtol(openmp, &end, 10) : 0;
    bool good = count > 0 && count <= MOST_THREADS && strchr(" ,", *end);
    return good ? (int)count : 0;
}

struct threads_share threads_of(const char *root, const cpu_set_t *allowed, const char *openmp,
                                int ranks, bool bound)
{
    struct topology topology;
    struct threads_share share = {.count = from_openmp(openmp)};
    char sys[PATH_MAX];
    if (share.count > 0) {
        snprintf(share.why, sizeof share.why, "OMP_NUM_THREADS");
        return share;
    }
    snprintf(sys, sizeof sys, "%s/sys", root);
    topology_read(sys, allowed, &topology);
    share.count = bound ? topology.core_count : topology.core_count / ranks;
    snprintf(share.why, sizeof share.why, "%s", share.count > 0 ? "one per core" : "");
    double quota = cgroup_cpu_quota(root);
    if (quota > 0 && quota / ranks < share.count) {
        share.count = (int)(quota / ranks);
        snprintf(share.why, sizeof share.why, "CPU quota %.4g", quota);
    }
    if (share.count < 1)
        share.count = 1;
    return share;
}

struct threads_share threads_default(int ranks, bool bound)
{
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        memset(&allowed, 0xff, sizeof allowed); /* more CPUs than the set can represent */
    return threads_of("", &allowed, getenv("OMP_NUM_THREADS"), ranks, bound);
}
