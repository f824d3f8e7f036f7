/* timetable_impl -- shared by the files of timetables. Private to src/engine. */
#ifndef ENGINE_TIMETABLE_IMPL_H
#define ENGINE_TIMETABLE_IMPL_H
#include "engine/timetable.h"

/* How far ahead rank p may run: forwards without their backward before the next forward; and, where
 * backward is split, forwards without their backward-weight. */
int64_t timetable_warmup(const struct timetable_shape *shape, int p);
int timetable_unweighted(const struct timetable_shape *shape);

/* A rank's n-th forward and backward, 0 <= n < passes; the same on every rank. */
int64_t timetable_passes(const struct timetable_shape *shape);
struct timetable_action timetable_forward(const struct timetable_shape *shape, int64_t n);
struct timetable_action timetable_backward(const struct timetable_shape *shape, int64_t n);

/* Called for each action in turn: a pass of rank p at index i; or a message, sent by the action at
 * index i of rank p and received by the action at index j of rank `peer` (-1: a pass). */
typedef void timetable_visit_fn(void *user, int p, int64_t i, int peer, int64_t j);
/* Carry out the lists one action at a time, with sends that block until they are received. at[p]
 * (pp) is the position that rank p reached: the end of its list, or where it is stuck. `visit` may
 * be NULL. */
enum status timetable_execute(struct env *env, const struct timetable *t, timetable_visit_fn *visit,
                              void *user, int64_t *at);
bool timetable_executed(const struct timetable *t, const int64_t *at);

#endif
