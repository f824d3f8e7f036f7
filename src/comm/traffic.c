/* traffic -- names and sums. */
#include "comm/traffic.h"
#include "base/status.h"

const char *traffic_word(enum traffic_purpose purpose)
{
    static const char *const words[TRAFFIC_PURPOSE_COUNT] = {"gather", "reduce", "muon",
                                                             "pipe",   "tensor", "control"};
    CHECK_LT((unsigned)purpose, TRAFFIC_PURPOSE_COUNT);
    return words[purpose];
}

const char *traffic_way_word(enum traffic_way way)
{
    static const char *const words[TRAFFIC_WAY_COUNT] = {"link_in", "link_out", "disk_read",
                                                         "disk_written"};
    CHECK_LT((unsigned)way, TRAFFIC_WAY_COUNT);
    return words[way];
}

bool traffic_has_moved(const struct traffic *traffic)
{
    bool any = false;
    for (int way = 0; way < TRAFFIC_WAY_COUNT; way++)
        any = any || traffic->moved[way] > 0;
    return any;
}

void traffic_add_far(struct traffic *traffic, const struct far *far)
{
    struct far_counts counts = far_counted(far);
    traffic->moved[TRAFFIC_LINK_IN] += counts.link_in;
    traffic->moved[TRAFFIC_LINK_OUT] += counts.link_out;
    traffic->moved[TRAFFIC_DISK_READ] += counts.disk_read;
    traffic->moved[TRAFFIC_DISK_WRITTEN] += counts.disk_written;
}

void traffic_add(struct traffic *sum, const struct traffic *more, int sign)
{
    for (int purpose = 0; purpose < TRAFFIC_PURPOSE_COUNT; purpose++) {
        sum->sent[purpose] += sign * more->sent[purpose];
        sum->calls[purpose] += sign * more->calls[purpose];
    }
    sum->in_flight += sign * more->in_flight;
    sum->waited += sign * more->waited;
    sum->tensor_in_flight += sign * more->tensor_in_flight;
    sum->tensor_waited += sign * more->tensor_waited;
    sum->stalled += sign * more->stalled;
    for (int way = 0; way < TRAFFIC_WAY_COUNT; way++)
        sum->moved[way] += sign * more->moved[way];
}
