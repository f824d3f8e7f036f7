/* timetable -- pipeline schedules as lists: what each rank of a pipeline does, in which order.
 *
 * Ranks p = 0 .. pp - 1 of a pipeline have `chunks` chunks of the model each; virtual stage
 * s = chunk * pp + p, and a step takes `rounds` rounds (micro-batches of this replica) through all
 * stages and back. A rank's list has every pass of its chunks and every message between ranks:
 *
 *     gpipe        all forwards, then all backwards
 *     1f1b         forwards until the first backward can come, then one of each
 *     interleaved  1f1b over chunks, pp rounds or some more at a time: the bubble divided by chunks
 *     zero-bubble  backward in two parts; weight gradients, which nobody waits for, fill the bubble
 *
 * The lists are a function of the shape alone, so every rank makes all of them for itself. Laws:
 *
 *  1. Backward passes (both parts) of a chunk come in the order of rounds, in every kind.
 *  2. Messages of one rank to another are received in the order in which they are sent.
 *  3. Carried out one action after another, with sends that wait until they are received, the lists
 *     end: all of them are parts of one common order, in which a message is one event for both of
 *     its ranks, so that the first event not done can always be done. Anything more patient
 *     (buffered sends, a stream of transfers beside compute) ends as well.
 *  4. A message is sent before its rank's next pass, and received before the pass during which it
 *     is likely to come: a stream of transfers beside compute, in the order of the list, loses nothing.
 *
 * Between chunks of one rank (pp = 1) there are no messages. Nothing here runs or sends anything;
 * how long a list takes is told by engine/timetable_simulate.h.
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
extern const char *const timetable_words[]; /* in the order of the enum, NULL at the end */

struct timetable_shape {
    int kind;   /* enum timetable_kind */
    int pp;     /* ranks */
    int chunks; /* a rank; more than 1 only if interleaved */
    int rounds; /* at least 1; no multiple of anything */
    bool eager; /* more rounds in flight, up to twice as many, which hides transfers; not gpipe */
};

enum timetable_verb {
    TIMETABLE_FORWARD,
    TIMETABLE_BACKWARD, /* both parts at once */
    TIMETABLE_INPUT,    /* the gradient of the chunk's input */
    TIMETABLE_WEIGHT,   /* the gradients of its parameters */
    TIMETABLE_SEND_ACTIVATION,
    TIMETABLE_RECV_ACTIVATION,
    TIMETABLE_SEND_GRADIENT,
    TIMETABLE_RECV_GRADIENT,
    TIMETABLE_VERB_COUNT
};

struct timetable_action {
    uint16_t verb;  /* enum timetable_verb */
    uint16_t chunk; /* of the rank whose list it is in */
    int32_t round;
};

struct timetable {
    struct timetable_shape shape;
    struct timetable_action *actions; /* rank after rank */
    int64_t *first;                   /* (pp + 1) where a rank's list begins; the last: their end */
};

/* Refuses a shape that there is no list for, with the key and the reason. */
enum status timetable_validate(struct env *env, const struct timetable_shape *shape);
/* All ranks' lists. The caller frees *t. */
enum status timetable_create(struct env *env, const struct timetable_shape *shape,
                             struct timetable *t);
void timetable_free(struct env *env, struct timetable *t);

/* Prove of these lists, whoever made them: every action of the shape is there exactly once, data
 * are there before they are used, laws 1, 2 and 3, and no chunk has more rounds in flight than
 * timetable_in_flight says. STATUS_INTERNAL with what is wrong and where. */
enum status timetable_check(struct env *env, const struct timetable *t);

/* --- questions about a shape ---------------------------------------------------------------- */

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

/* Whether backward passes are in two parts. */
bool timetable_splits(const struct timetable_shape *shape);
/* The other rank of a message in rank p's list. */
int timetable_peer(const struct timetable_shape *shape, int p, int verb);
/* Whether rank p's list has this action, for each round. */
bool timetable_has(const struct timetable_shape *shape, int p, int verb, int chunk);
/* At most so many rounds of a chunk are between the begin of their forward and the end of their
 * backward (of its weight part, if split) at once: memory is planned by it. Inputs may be received
 * before that: see `held` of timetable_count_peaks. */
int timetable_in_flight(const struct timetable_shape *shape, int p, int chunk);

/* --- questions about lists ------------------------------------------------------------------ */

/* The most at once of rank p's chunk. */
struct timetable_peaks {
    int in_flight; /* from forward to the end of backward */
    int held;      /* the same from the receive of its input on */
    int split;     /* from the input part of backward to the end of the weight part */
    int gradients; /* gradients of its output: from their receive to the end of (input) backward */
};
struct timetable_peaks timetable_count_peaks(const struct timetable *t, int p, int chunk);

/* "F3", "B3", "I3", "W3": passes of round 3; "a3>1": its activations to rank 1, "g3<1": its
 * gradient from rank 1; with several chunks "F2.3": of chunk 2. Returns out, which holds
 * TIMETABLE_NAME_BYTES. */
enum { TIMETABLE_NAME_BYTES = 48 };
char *timetable_name(const struct timetable_shape *shape, int p, struct timetable_action action,
                     char *out);
/* The list of rank p, in lines of at most `width` characters. */
void timetable_print(const struct timetable *t, int p, int width, struct text *text);

#endif
