/* pipeline_times -- runs the simulator of schedules for bench/bubble: the time of a step from the
 * times of its passes.
 *
 *     pipeline_times SCHEDULE STAGES CHUNKS ROUNDS MESSAGE
 *
 * MESSAGE is the time of a message in seconds. stdin has a line `STAGE PASS SECONDS` for every
 * pass: "1 B3 0.25". Prints the seconds until the end of the last pass.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/env.h"
#include "engine/timetable_simulate.h"

static int schedule_of(const char *word)
{
    for (int kind = 0; timetable_words[kind]; kind++)
        if (strcmp(timetable_words[kind], word) == 0)
            return kind;
    return -1;
}

/* Set each[] of a pass, which is found by its name in the timetable of PP stage p. */
static bool place(const struct timetable *t, int p, const char *pass, double seconds, double *each)
{
    char name[TIMETABLE_NAME_BYTES];
    if (p < 0 || p >= t->shape.pp)
        return false;
    for (int64_t i = t->first[p]; i < t->first[p + 1]; i++)
        if (strcmp(timetable_name(&t->shape, p, t->actions[i], name), pass) == 0) {
            each[i] = seconds;
            return true;
        }
    return false;
}

static enum status read_passes(struct env *env, const struct timetable *t, double *each)
{
    char pass[32];
    double seconds;
    for (int p; scanf("%d %31s %lf", &p, pass, &seconds) == 3;)
        if (!place(t, p, pass, seconds, each))
            return FAIL(env, USAGE, "stage %d has no pass '%s'", p, pass);
    return STATUS_OK;
}

static enum status simulate(struct env *env, const struct timetable *t, double message,
                            double *each)
{
    const struct timetable_costs costs = {
        .each = each, .latency = message, .transfers = TIMETABLE_LINKS};
    struct timetable_times times;
    double end = 0;
    TRY(read_passes(env, t, each));
    TRY(timetable_simulate(env, t, &costs, &times));
    for (int64_t i = 0; i < t->first[t->shape.pp]; i++)
        if (!timetable_is_message(t->actions[i].verb) && times.spans[i].end > end)
            end = times.spans[i].end;
    timetable_times_free(env, &times);
    printf("%.9g\n", end);
    return STATUS_OK;
}

static enum status run(struct env *env, const struct timetable_shape *shape, double message)
{
    struct timetable table;
    double *each;
    TRY(timetable_validate(env, shape));
    TRY(timetable_create(env, shape, &table));
    enum status st = mem_alloc_array(env, MEM_OTHER, "passes", (size_t)table.first[shape->pp],
                                     sizeof *each, &each);
    if (st == STATUS_OK) {
        st = simulate(env, &table, message, each);
        mem_free(env, each);
    }
    timetable_free(env, &table);
    return st;
}

static void say(void *user, enum log_level level, const char *line)
{
    (void)user, (void)level;
    fprintf(stderr, "pipeline_times: %s\n", line);
}

int main(int argc, char **argv)
{
    struct env env;
    if (argc != 6 || schedule_of(argv[1]) < 0) {
        fprintf(stderr, "usage: pipeline_times SCHEDULE STAGES CHUNKS ROUNDS MESSAGE <PASSES\n");
        return 2;
    }
    struct timetable_shape shape = {.kind = schedule_of(argv[1]),
                                    .pp = atoi(argv[2]),
                                    .chunks = atoi(argv[3]),
                                    .rounds = atoi(argv[4])};
    if (env_create(&env, say, NULL, LOG_WARN, 1) != STATUS_OK)
        return 1;
    enum status st = run(&env, &shape, atof(argv[5]));
    env_destroy(&env);
    return st != STATUS_OK;
}
