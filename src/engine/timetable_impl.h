/* What the files of timetables share. */
#ifndef ENGINE_TIMETABLE_IMPL_H
#define ENGINE_TIMETABLE_IMPL_H
#include "engine/timetable.h"

/* How far ahead rank p may be: forwards without their backward, before the next one; and, where
 * backward is split, without their weight pass. */
int64_t timetable_warmup(const struct timetable_shape *shape, int p);
int timetable_unweighted(const struct timetable_shape *shape);

/* A rank's n-th forward and n-th backward, 0 <= n < passes; the same on every rank. */
int64_t timetable_passes(const struct timetable_shape *shape);
struct timetable_action timetable_forward(const struct timetable_shape *shape, int64_t n);
struct timetable_action timetable_backward(const struct timetable_shape *shape, int64_t n);

/* Told of each action in turn: a pass of rank p, action i of all; or a message, sent by action i of
 * rank p and received by action j of rank `peer`. */
typedef void timetable_visit_fn(void *user, int p, int64_t i, int peer, int64_t j);
/* Carry out the lists one action after another, with sends that wait until they are received.
 * at[p] (pp) is where rank p came to: the ends of all lists, or nobody can go on. `visit` may be
 * NULL. */
enum status timetable_execute(struct env *env, const struct timetable *t, timetable_visit_fn *visit,
                              void *user, int64_t *at);
bool timetable_executed(const struct timetable *t, const int64_t *at);

#endif
