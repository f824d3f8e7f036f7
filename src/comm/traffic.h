/* traffic -- what a rank has sent to other ranks, by purpose, and what it cost; and what has moved
 * between its device and far memory (device/far.h).
 *
 * One struct for every layer: the store fills in what it sends and moves, the engine adds what a
 * pipeline sends, and the trainer, the planner and the commands subtract, add up and print it.
 */
#ifndef COMM_TRAFFIC_H
#define COMM_TRAFFIC_H
#include <stdbool.h>
#include <stdint.h>
#include "device/far.h"

enum traffic_purpose {
    TRAFFIC_GATHER,  /* params to the ranks that compute with them, and summed gradients where
                        several ranks hold them; between PP stages: tied params */
    TRAFFIC_REDUCE,  /* gradients to their owners; between PP stages: those of tied params */
    TRAFFIC_MUON,    /* matrices to the ranks that orthogonalize them, and back */
    TRAFFIC_PIPE,    /* activations and their gradients, from PP stage to PP stage */
    TRAFFIC_TENSOR,  /* everything within a TP group */
    TRAFFIC_CONTROL, /* counts, losses, norms, votes */
    TRAFFIC_PURPOSE_COUNT
};
const char *traffic_word(enum traffic_purpose purpose); /* "gather" */

/* Ways of bytes of offloaded state and activations. From disk to a GPU, a byte goes both ways. */
enum traffic_way {
    TRAFFIC_LINK_IN,  /* from host memory to the GPU */
    TRAFFIC_LINK_OUT, /* from the GPU to host memory */
    TRAFFIC_DISK_READ,
    TRAFFIC_DISK_WRITTEN,
    TRAFFIC_WAY_COUNT
};
const char *traffic_way_word(enum traffic_way way); /* "link_in" */

struct traffic {
    int64_t sent[TRAFFIC_PURPOSE_COUNT];  /* bytes */
    int64_t calls[TRAFFIC_PURPOSE_COUNT]; /* collectives, sends and receives that are complete */
    double in_flight; /* seconds that calls took, control excepted; a receive counts from the
                         moment it is posted */
    double waited;    /* seconds of in_flight during which compute stood still */
    double tensor_in_flight, tensor_waited; /* the part of both within the TP group */
    double stalled; /* seconds of waited for messages of a pipeline neighbour: the bubble, without
                       the time before the first pass and after the last */
    int64_t moved[TRAFFIC_WAY_COUNT]; /* bytes */
};

bool traffic_has_moved(const struct traffic *traffic); /* any bytes */
/* Add what streams have moved to and from far memory, which may be NULL. */
void traffic_add_far(struct traffic *traffic, const struct far *far);

/* sum += sign * more, field by field; `sign` is 1 or -1. */
void traffic_add(struct traffic *sum, const struct traffic *more, int sign);

#endif
