/* options_nearest -- the known word that was probably meant.
 *
 * Edit distance where swapping two neighbours counts as one edit ("stpes" is one edit from
 * "steps"). Words are similar when the distance is at most a third of the word, so that short words
 * do not match everything. A key whose last part is right but whose section is wrong or missing
 * ("steps", "model.steps") counts as one edit.
 */
#include <string.h>
#include "base/options_impl.h"

enum { LONGEST = 64 };

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* Three rows of the usual table are enough: the current one and the last two, since swaps need the
 * row before the last. */
static int edit_distance(const char *a, int a_bytes, const char *b, int b_bytes)
{
    int rows[3][LONGEST + 1];
    int *before = rows[0], *last = rows[1], *row = rows[2];
    for (int j = 0; j <= b_bytes; j++)
        last[j] = j;
    for (int i = 1; i <= a_bytes; i++) {
        row[0] = i;
        for (int j = 1; j <= b_bytes; j++) {
            row[j] =
                smaller(smaller(last[j], row[j - 1]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = smaller(row[j], before[j - 2] + 1);
        }
        int *oldest = before;
        before = last;
        last = row;
        row = oldest;
    }
    return last[b_bytes];
}

static const char *last_part(const char *key, size_t bytes)
{
    const char *dot = memrchr(key, '.', bytes);
    return dot ? dot + 1 : key;
}

int options_near(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    if (a_bytes == 0 || b_bytes == 0 || a_bytes > LONGEST || b_bytes > LONGEST)
        return -1;
    int distance = edit_distance(a, (int)a_bytes, b, (int)b_bytes);
    if (distance <= smaller((int)a_bytes, (int)b_bytes) / 3)
        return distance;
    const char *a_part = last_part(a, a_bytes), *b_part = last_part(b, b_bytes);
    size_t part_bytes = (size_t)(a + a_bytes - a_part);
    bool same =
        part_bytes == (size_t)(b + b_bytes - b_part) && memcmp(a_part, b_part, part_bytes) == 0;
    return same ? 1 : -1;
}

const char *options_nearest(const char *word, const char *const *candidates, int count)
{
    const char *best = NULL;
    int best_distance = 0;
    for (int i = 0; i < count; i++) {
        int distance = options_near(word, strlen(word), candidates[i], strlen(candidates[i]));
        if (distance >= 0 && (!best || distance < best_distance)) {
            best = candidates[i];
            best_distance = distance;
        }
    }
    return best;
}
