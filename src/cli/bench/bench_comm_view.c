/* bench_comm_view -- the output of `sifr bench comm`: a line for each kind of call and size, and
 * the fitted prices. */
#include "cli/bench/bench.h"

static void show_line(struct console *console, const struct bench_comm_line *line)
{
    char bytes[32], copy[32] = "", share[32] = "";
    double rate = line->bytes / line->seconds;
    if (line->copy_rate > 0) {
        snprintf(copy, sizeof copy, "%.2f", line->copy_rate / 1e9);
        snprintf(share, sizeof share, "%.1f%%", 100 * rate / line->copy_rate);
    }
    console_line(console, "%-15s %-8s %10s %12.1f %10.3f %10s %9s", line->what,
                 line->between ? "between" : "inside", text_human_bytes(bytes, line->bytes),
                 1e6 * line->seconds, rate / 1e9, copy, share);
}

static void show_wire(struct console *console, const char *name, const struct comm_wire *wire,
                      double error)
{
    console_line(
        console, "  %-10s latency %.1f us, %.1f us per message, %.2f GB/s; largest error %.2f x",
        name, 1e6 * wire->latency, 1e6 * wire->message, wire->bytes_per_second / 1e9, error);
}

void bench_comm_table(struct console *console, const struct bench_comm_result *result)
{
    const struct comm_prices *prices = &result->prices;
    console_line(console, "%d ranks, %d per node\n", result->ranks, result->node);
    console_line(console, "%-15s %-8s %10s %12s %10s %10s %9s", "call", "ranks", "sent", "us",
                 "GB/s", "copy GB/s", "of copy");
    for (int i = 0; i < result->count; i++)
        show_line(console, &result->lines[i]);
    console_line(console, "\nfitted");
    if (result->node > 1)
        show_wire(console, "inside", &prices->inside, result->inside_error);
    if (result->node < result->ranks)
        show_wire(console, "between", &prices->between, result->between_error);
    console_line(console, "  exchange   %.1f us per doubling of the ranks", 1e6 * prices->exchange);
    console_line(console, "  theft      %.2f s of compute lost per second of concurrent calls",
                 prices->theft);
    console_line(console, "  sums       %.2f GB/s", prices->sum_bytes_per_second / 1e9);
}

static void add_wire(struct json_out *json, const char *name, const struct comm_wire *wire,
                     double error)
{
    json_out_open(json, name, '{');
    json_out_real(json, "latency", wire->latency);
    json_out_real(json, "message", wire->message);
    json_out_real(json, "bytes_per_second", wire->bytes_per_second);
    json_out_real(json, "error", error);
    json_out_close(json, '}');
}

void bench_comm_json(struct json_out *json, const struct bench_comm_result *result)
{
    const struct comm_prices *prices = &result->prices;
    json_out_int(json, "ranks", result->ranks);
    json_out_int(json, "node", result->node);
    json_out_open(json, "calls", '[');
    for (int i = 0; i < result->count; i++) {
        const struct bench_comm_line *line = &result->lines[i];
        json_out_open(json, NULL, '{');
        json_out_string(json, "call", line->what);
        json_out_bool(json, "between", line->between);
        json_out_int(json, "messages", line->messages);
        json_out_int(json, "bytes", (int64_t)line->bytes);
        json_out_real(json, "seconds", line->seconds);
        json_out_real(json, "bytes_per_second", line->bytes / line->seconds);
        json_out_real(json, "copy_bytes_per_second", line->copy_rate);
        json_out_close(json, '}');
    }
    json_out_close(json, ']');
    if (result->node > 1)
        add_wire(json, "inside", &prices->inside, result->inside_error);
    if (result->node < result->ranks)
        add_wire(json, "between", &prices->between, result->between_error);
    json_out_real(json, "exchange", prices->exchange);
    json_out_real(json, "theft", prices->theft);
    json_out_real(json, "sum_bytes_per_second", prices->sum_bytes_per_second);
}
