/* plot -- dots of a curve, packed into braille characters.
 *
 *     6.91 ┤⡇                        y range: all points and marks
 *          │⢣
 *     3.28 ┤ ⠑⠢⣀⣀●⠤⠤⠤⠤⠤⠤●           a column of dots shows the mean of its points;
 *          └─────────────────        vertical strokes join neighbours, so the line has no gaps
 *           1            2000
 *
 * Without UTF-8 the same cells are stars and spaces. A braille character is U+2800 plus eight
 * bits, one for each dot of a cell of 2 x 4.
 */
#include "cli/plot.h"
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LABEL = 9, CELLS_MAX = 200, ROWS_MAX = 50, DOTS_X = 2, DOTS_Y = 4, MARK = 0x100 };

struct canvas {
    int cells, rows;                    /* of characters */
    double x0, x1, y0, y1;              /* range of values on the axes */
    uint16_t cell[ROWS_MAX][CELLS_MAX]; /* dot bits, or MARK */
    uint8_t owner[ROWS_MAX][CELLS_MAX]; /* the line drawn last: 0, or 1 + the number of another */
};

static void stretch(double value, double *low, double *high)
{
    *low = value < *low ? value : *low;
    *high = value > *high ? value : *high;
}

/* Differences of such values do not overflow. */
static bool is_drawn(double y)
{
    return fabs(y) <= FLT_MAX;
}

/* The point on the axes, and back for the labels. */
static struct plot_point to_axes(const struct plot *plot, struct plot_point p)
{
    if ((plot->log_x && p.x <= 0) || (plot->log_y && p.y <= 0))
        return (struct plot_point){p.x, NAN};
    return (struct plot_point){plot->log_x ? log2(p.x) : p.x, plot->log_y ? log2(p.y) : p.y};
}

static double from_axis(bool is_log, double value)
{
    return is_log ? exp2(value) : value;
}

/* Widen the range to these points; returns how many can be drawn. */
static int add_range(const struct plot *plot, const struct plot_point *points, int count,
                     struct canvas *c)
{
    int drawn = 0;
    for (int i = 0; i < count; i++) {
        struct plot_point p = to_axes(plot, points[i]);
        if (!is_drawn(p.y))
            continue;
        stretch(p.x, &c->x0, &c->x1);
        stretch(p.y, &c->y0, &c->y1);
        drawn++;
    }
    return drawn;
}

/* The range of everything to draw; false with fewer than two points on the lines. */
static bool find_range(const struct plot *plot, struct canvas *c)
{
    int count = 0;
    c->x0 = c->y0 = INFINITY;
    c->x1 = c->y1 = -INFINITY;
    for (int i = 0; i < plot->other_count; i++)
        count += add_range(plot, plot->others[i].points, plot->others[i].count, c);
    count += add_range(plot, plot->line, plot->line_count, c);
    add_range(plot, plot->marks, plot->mark_count, c);
    if (c->y1 - c->y0 < 1e-9) {
        c->y0 -= 0.5;
        c->y1 += 0.5;
    }
    return count >= 2 && c->x1 > c->x0;
}

static int dot_x(const struct canvas *c, double x)
{
    return (int)lround((x - c->x0) / (c->x1 - c->x0) * (c->cells * DOTS_X - 1));
}

static int dot_y(const struct canvas *c, double y) /* 0 is the top */
{
    return (int)lround((c->y1 - y) / (c->y1 - c->y0) * (c->rows * DOTS_Y - 1));
}

static void set_dot(struct canvas *c, int x, int y, uint8_t owner)
{
    static const uint8_t bits[DOTS_Y][DOTS_X] = {
        {0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    c->owner[y / DOTS_Y][x / DOTS_X] = owner;
    c->cell[y / DOTS_Y][x / DOTS_X] |= bits[y % DOTS_Y][x % DOTS_X];
}

/* In column x, from the height of the column before to this one's. */
static void draw_stroke(struct canvas *c, int x, int from, int to, uint8_t owner)
{
    int step = to > from ? 1 : -1;
    for (int y = from == to ? to : from + step; y != to; y += step)
        set_dot(c, x, y, owner);
    set_dot(c, x, to, owner);
}

static void draw_line(struct canvas *c, const struct plot *plot, const struct plot_point *points,
                      int count, uint8_t owner)
{
    int last_x = -1, last_y = 0;
    for (int i = 0; i < count;) {
        struct plot_point p = to_axes(plot, points[i]);
        int target_x = dot_x(c, p.x), n = 0;
        double sum = 0;
        while (dot_x(c, p.x) == target_x) {
            if (is_drawn(p.y)) {
                sum += p.y;
                n++;
            }
            if (++i == count)
                break;
            p = to_axes(plot, points[i]);
        }
        if (n == 0)
            continue;
        /* Columns between two points are on the straight line between them. */
        int target_y = dot_y(c, sum / n), from_x = last_x, from_y = last_y;
        for (int x = last_x < 0 ? target_x : last_x + 1; x <= target_x; x++) {
            int y = x == target_x
                        ? target_y
                        : from_y + (target_y - from_y) * (x - from_x) / (target_x - from_x);
            draw_stroke(c, x, last_x < 0 ? y : last_y, y, owner);
            last_x = x;
            last_y = y;
        }
    }
}

static void draw_marks(struct canvas *c, const struct plot *plot)
{
    for (int i = 0; i < plot->mark_count; i++) {
        struct plot_point p = to_axes(plot, plot->marks[i]);
        if (is_drawn(p.y))
            c->cell[dot_y(c, p.y) / DOTS_Y][dot_x(c, p.x) / DOTS_X] = MARK;
    }
}

static void print_cell(const struct plot *plot, uint16_t cell, uint8_t owner, struct text *text)
{
    const char *on = owner > 0 ? plot->others[owner - 1].on : plot->line_on;
    if (cell == MARK) {
        text_printf(text, "%s%s%s", plot->mark_on, plot->ascii ? "o" : "●", plot->off);
    } else if (cell == 0) {
        text_add(text, " ");
    } else if (plot->other_count > 0 && !*plot->off) {
        text_printf(text, "%c", owner > 0 ? plot->others[owner - 1].letter : plot->letter);
    } else if (plot->ascii) {
        text_printf(text, "%s*%s", on, plot->off);
    } else {
        unsigned code = 0x2800u + cell;
        char utf8[] = {(char)(0xe0 | code >> 12), (char)(0x80 | (code >> 6 & 0x3f)),
                       (char)(0x80 | (code & 0x3f)), 0};
        text_printf(text, "%s%s%s", on, utf8, plot->off);
    }
}

/* Fits before the axis for values of any size. */
static void print_label(double y, struct text *text)
{
    double size = fabs(y);
    if (size < 1e3)
        text_printf(text, "%*.3f", LABEL - 2, y);
    else
        text_printf(text, size < 1e6 ? "%*.0f" : "%*.1e", LABEL - 2, y);
}

static void print_canvas(const struct plot *plot, const struct canvas *c, struct text *text)
{
    for (int row = 0; row < c->rows; row++) {
        bool labelled = row == 0 || row == c->rows - 1 || row == (c->rows - 1) / 2;
        double y = c->y1 - (c->y1 - c->y0) * row / (c->rows - 1);
        if (labelled)
            print_label(from_axis(plot->log_y, y), text);
        else
            text_printf(text, "%*s", LABEL - 2, "");
        text_add(text, plot->ascii ? " |" : labelled ? " ┤" : " │");
        int last = c->cells;
        while (last > 0 && c->cell[row][last - 1] == 0)
            last--;
        for (int i = 0; i < last; i++)
            print_cell(plot, c->cell[row][i], c->owner[row][i], text);
        text_add(text, "\n");
    }
    text_printf(text, "%*s%s", LABEL - 1, "", plot->ascii ? "+" : "└");
    for (int i = 0; i < c->cells; i++)
        text_add(text, plot->ascii ? "-" : "─");
    double x0 = from_axis(plot->log_x, c->x0), x1 = from_axis(plot->log_x, c->x1);
    text_printf(text, "\n%*s%-*.0f%.0f\n", LABEL, "", c->cells - snprintf(NULL, 0, "%.0f", x1), x0,
                x1);
}

struct plot plot_on(const struct console *console, int width_max, int height)
{
    return (struct plot){.width = console->width < width_max ? console->width : width_max,
                         .height = height,
                         .line_on = console_style(console, STYLE_CYAN),
                         .mark_on = console_style(console, STYLE_YELLOW),
                         .off = console_style(console, STYLE_PLAIN),
                         .ascii = console->ascii};
}

void plot_draw(const struct plot *plot, struct text *text)
{
    struct canvas canvas = {.cells = plot->width - LABEL, .rows = plot->height - 2};
    canvas.cells = canvas.cells < 10 ? 10 : canvas.cells > CELLS_MAX ? CELLS_MAX : canvas.cells;
    canvas.rows = canvas.rows < 3 ? 3 : canvas.rows > ROWS_MAX ? ROWS_MAX : canvas.rows;
    if (!find_range(plot, &canvas))
        return;
    for (int i = plot->other_count - 1; i >= 0; i--)
        draw_line(&canvas, plot, plot->others[i].points, plot->others[i].count, (uint8_t)(i + 1));
    draw_line(&canvas, plot, plot->line, plot->line_count, 0);
    draw_marks(&canvas, plot);
    print_canvas(plot, &canvas, text);
}

/* --- curves in fixed memory ------------------------------------------------------------------- */

static void halve(struct curve *curve)
{
    for (int i = 0; i < CURVE_POINTS / 2; i++) {
        const struct plot_point *a = &curve->points[2 * i], *b = a + 1;
        curve->points[i] = (struct plot_point){(a->x + b->x) / 2, (a->y + b->y) / 2};
    }
    curve->count = CURVE_POINTS / 2;
    curve->stride *= 2;
}

static struct plot_point pending_mean(const struct curve *curve)
{
    return (struct plot_point){curve->sum.x / (double)curve->pending,
                               curve->sum.y / (double)curve->pending};
}

void curve_add(struct curve *curve, double x, double y)
{
    if (!is_drawn(y))
        return;
    if (curve->stride == 0)
        curve->stride = 1;
    curve->sum.x += x;
    curve->sum.y += y;
    if (++curve->pending < curve->stride)
        return;
    struct plot_point mean = pending_mean(curve);
    curve->sum = (struct plot_point){0};
    curve->pending = 0;
    if (curve->count == CURVE_POINTS)
        halve(curve);
    curve->points[curve->count++] = mean;
}

int curve_points(const struct curve *curve, struct plot_point *out)
{
    int count = curve->count;
    memcpy(out, curve->points, (size_t)count * sizeof *out);
    if (curve->pending && count < CURVE_POINTS)
        out[count++] = pending_mean(curve);
    return count;
}

void curve_draw(const struct curve *curve, const struct plot_point *marks, int mark_count,
                const struct console *console, struct text *text)
{
    struct plot_point points[CURVE_POINTS];
    struct plot plot = plot_on(console, 96, 14);
    plot.line = points;
    plot.line_count = curve_points(curve, points);
    plot.marks = marks;
    plot.mark_count = mark_count;
    plot_draw(&plot, text);
}
