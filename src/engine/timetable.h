/* timetable -- pipeline schedules as lists: what each rank of a pipeline does, and in which order.
 *
 * A pipeline has ranks p = 0 .. pp - 1 with `chunks` chunks of the model each. Chunk c of rank p is
 * virtual stage s = c * pp + p. A step takes `rounds` rounds (micro-batches of this replica)
 * through all stages and back. A rank's list contains every pass of its chunks and every message to
 * or from other ranks:
 *
 *     gpipe        all forwards, then all backwards
 *     1f1b         forwards until the first backward is possible, then one of each in turn
 *     interleaved  1f1b over chunks, pp rounds or a few more at a time: bubble / chunks
 *     zero-bubble  backward in two parts; weight gradients, which nobody waits for, fill the bubble
 *
 *     rank 0  F0 F1 F2 F3 .. .. .. B0 .. B1 .. B2 .. B3     1f1b, pp = 4, rounds = 4: the passes of
 *     rank 3  .. .. .. F0 B0 F1 B1 F2 B2 F3 B3              two ranks if all take the same time
 *
 * The lists depend on the shape alone, so every rank computes all of them. They obey four laws:
 *
 * 1. The backward passes of a chunk (both parts) are in the order of rounds, in every kind. 2.
 * Messages from one rank to another are received in the order in which they are sent. 3. Carried
 * out one action at a time, with sends that block until they are received, the lists
 *     end: all of them are parts of one common order, in which a message is one event for both of
 *     its ranks, so the first event that is not done can always be done. Anything that blocks less
 *     (buffered sends, messages on side streams) ends as well.
 * 4. A message is sent before its rank's next pass, and its receive is listed before the pass
 * during
 *     which it is likely to arrive, so messages on side streams, in the order of the list, cost
 *     no time.
 *
 * Chunks of one rank (pp = 1) exchange no messages. Nothing here runs or sends anything;
 * engine/timetable_simulate.h computes how long a list takes.
 */
#ifndef ENGINE_TIMETABLE_H
#define ENGINE_TIMETABLE_H
#include <stdbool.h>
#include <stdint.h>
#include "base/text.h"

enum timetable_kind {
    TIMETABLE_GPIPE,
    TIMETABLE_1F1B,
    TIMETABLE_INTERLEAVED,
    TIMETABLE_ZERO_BUBBLE
};
extern const char *const timetable_words[]; /* in the order of the enum, then NULL */

struct timetable_shape {
    int kind;   /* enum timetable_kind */
    int pp;     /* ranks */
    int chunks; /* per rank; more than 1 only if interleaved */
    int rounds; /* at least 1; need not be a multiple of pp */
    bool eager; /* up to twice as many rounds in flight, which hides transfers; not gpipe */
};

enum timetable_verb {
    TIMETABLE_FORWARD,
    TIMETABLE_BACKWARD, /* both parts in one pass */
    TIMETABLE_INPUT,    /* backward-input */
    TIMETABLE_WEIGHT,   /* backward-weight */
    TIMETABLE_SEND_ACTIVATION,
    TIMETABLE_RECV_ACTIVATION,
    TIMETABLE_SEND_GRADIENT,
    TIMETABLE_RECV_GRADIENT,
    TIMETABLE_VERB_COUNT
};

struct timetable_action {
    uint16_t verb;  /* enum timetable_verb */
    uint16_t chunk; /* of the rank that has the action in its list */
    int32_t round;
};

struct timetable {
    struct timetable_shape shape;
    struct timetable_action *actions; /* rank after rank */
    int64_t *first;                   /* (pp + 1) start of each rank's list, then the end of the
                                         last */
};

/* Refuse a shape that has no lists, with the key and the reason. */
enum status timetable_validate(struct env *env, const struct timetable_shape *shape);
/* The lists of all ranks. The caller frees *t. */
enum status timetable_create(struct env *env, const struct timetable_shape *shape,
                             struct timetable *t);
void timetable_free(struct env *env, struct timetable *t);

/* Prove these lists correct, independently of how they were made: every action of the shape is
 * present exactly once, data arrives before it is used, laws 1, 2 and 3 hold, and no chunk has more
 * rounds in flight than timetable_in_flight says. STATUS_INTERNAL with what is wrong and where. */
enum status timetable_check(struct env *env, const struct timetable *t);

/* --- properties of a shape ------------------------------------------------------------------ */

static inline int timetable_pp_stages(const struct timetable_shape *shape)
{
    return shape->pp * shape->chunks;
}

static inline int timetable_pp_stage(const struct timetable_shape *shape, int p, int chunk)
{
    return chunk * shape->pp + p;
}

static inline bool timetable_is_send(int verb)
{
    return verb == TIMETABLE_SEND_ACTIVATION || verb == TIMETABLE_SEND_GRADIENT;
}

static inline bool timetable_is_message(int verb)
{
    return verb >= TIMETABLE_SEND_ACTIVATION;
}

/* Whether backward passes are split in two. */
bool timetable_splits(const struct timetable_shape *shape);
/* The other rank of a message in rank p's list. */
int timetable_peer(const struct timetable_shape *shape, int p, int verb);
/* Whether rank p's list has this action (once for each round). */
bool timetable_has(const struct timetable_shape *shape, int p, int verb, int chunk);
/* The most rounds of a chunk that can be between the begin of forward and the end of backward (of
 * backward-weight, if split) at once: activations are allocated by it. Inputs may be received
 * earlier: see timetable_peaks.held. */
int timetable_in_flight(const struct timetable_shape *shape, int p, int chunk);

/* --- properties of lists -------------------------------------------------------------------- */

/* The largest numbers of rounds of rank p's chunk at the same time. */
struct timetable_peaks {
    int in_flight; /* from forward to the end of backward */
    int held;      /* the same, counted from the receive of the input */
    int split;     /* from backward-input to the end of backward-weight */
    int gradients; /* gradients of the output: from their receive to the end of backward
                      (backward-input, if split) */
};
struct timetable_peaks timetable_count_peaks(const struct timetable *t, int p, int chunk);

/* "F3", "B3", "I3", "W3": passes of round 3. "a3>1": its activations to rank 1; "g3<1": its
 * gradient from rank 1. With several chunks "F2.3": round 3 of chunk 2. Returns out, which holds
 * TIMETABLE_NAME_BYTES. */
enum { TIMETABLE_NAME_BYTES = 48 };
char *timetable_name(const struct timetable_shape *shape, int p, struct timetable_action action,
                     char *out);

#endif
