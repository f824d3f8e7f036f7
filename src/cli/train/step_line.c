/* step_line -- allocates nothing: it is called at every step. */
#include "cli/train/step_line.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "train/run/pace.h"

__attribute__((format(printf, 2, 3))) static void append(char *out, const char *format, ...)
{
    size_t used = strlen(out);
    va_list args;
    va_start(args, format);
    vsnprintf(out + used, STEP_LINE_BYTES - used, format, args);
    va_end(args);
}

/* Clock and power, on which the rate depends. */
static const char *gpu_words(const struct device_gauges *gauges, char *out, size_t bytes)
{
    struct device_gauges brief = *gauges;
    brief.celsius = 0;
    return gauges_words(&brief, out, bytes);
}

char *step_line(char *out, const struct trainer_step *s)
{
    char human[32];
    double milliseconds = s->seconds * 1e3;
    out[0] = 0;
    append(out, "step%6lld/%lld%6.1f%%", (long long)s->step, (long long)s->steps,
           100 * (double)s->step / (double)s->steps);
    append(out, " | loss %.4f | gnorm %.2f | lr %.2e", s->loss, s->grad_norm, s->lr);
    append(out, milliseconds < 10 ? " | %.1f ms" : " | %.0f ms", milliseconds);
    append(out, " | %s tok/s", text_human_count(human, s->tokens_per_second));
    if (isfinite(s->mfu))
        append(out, " | mfu %.1f%%", 100 * s->mfu);
    if (*gpu_words(&s->gauges, human, sizeof human))
        append(out, " | %s", human);
    append(out, " | mem %s", text_human_bytes(human, (double)s->held->total_bytes));
    if (isfinite(s->eta_seconds))
        append(out, " | eta %s", text_human_seconds(human, s->eta_seconds));
    if (s->skipped)
        append(out, " | skipped");
    return out;
}
