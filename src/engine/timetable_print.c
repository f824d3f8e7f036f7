/* timetable_print -- prints lists as words, and their times as a picture in characters.
 */
#include <stdio.h>
#include <string.h>
#include "engine/timetable.h"
#include "engine/timetable_simulate.h"

char *timetable_name(const struct timetable_shape *shape, int p, struct timetable_action action,
                     char *out)
{
    static const char letters[] = "FBIWaagg";
    char peer[16] = "", chunk[16] = "";
    CHECK_LT(action.verb, TIMETABLE_VERB_COUNT);
    if (timetable_is_message(action.verb))
        snprintf(peer, sizeof peer, "%c%d", timetable_is_send(action.verb) ? '>' : '<',
                 timetable_peer(shape, p, action.verb));
    if (shape->chunks > 1)
        snprintf(chunk, sizeof chunk, "%d.", action.chunk);
    snprintf(out, TIMETABLE_NAME_BYTES, "%c%s%d%s", letters[action.verb], chunk, action.round,
             peer);
    return out;
}

static char symbol(struct timetable_action action)
{
    switch (action.verb) {
    case TIMETABLE_FORWARD: return (char)('0' + action.round % 10);
    case TIMETABLE_BACKWARD:
    case TIMETABLE_INPUT: return (char)('a' + action.round % 10);
    case TIMETABLE_WEIGHT: return 'w';
    default: return '-';
    }
}

/* Fill the columns whose middle is in the span. Passes overwrite transfers; transfers overwrite
 * nothing. */
static void draw(char *row, int width, double begin, double end, struct timetable_span span,
                 char mark)
{
    double scale = width / (end - begin);
    double left = (span.begin - begin) * scale - 0.5, right = (span.end - begin) * scale - 0.5;
    if (right <= 0.0 || left >= width)
        return;
    int column = left > 0.0 ? (int)left : 0;
    for (column += column < left; column < width && column < right; column++)
        if (row[column] == '.' || mark != '-')
            row[column] = mark;
}

void timetable_print_times(const struct timetable *t, const struct timetable_times *times,
                           double begin, double end, int width, struct text *text)
{
    enum { MOST = 1024 };
    char row[MOST + 1];
    width = width < 1 ? 1 : width > MOST ? MOST : width;
    CHECK(begin < end);
    for (int p = 0; p < t->shape.pp; p++) {
        memset(row, '.', (size_t)width);
        row[width] = '\0';
        for (int64_t i = t->first[p]; i < t->first[p + 1]; i++)
            draw(row, width, begin, end, times->spans[i], symbol(t->actions[i]));
        text_printf(text, "rank %-4d %s\n", p, row);
    }
}
