/* Any bytes as the profile of a machine: they are refused, or the figures can be used in
 * calculations, the calls have names, and the printed profile parses again. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include "plan/machine_file.h"

enum { MOST_PRICED = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void ignore_line(void *user, enum log_level level, const char *line)
{
    (void)user, (void)level, (void)line;
}

/* The measured call has a price, and so has a similar call that was not measured. */
static void check_call(const struct ops_prices *prices, const struct ops *ops,
                       const struct ops_measured *call)
{
    char name[OPS_CASE_NAME];
    struct ops_case neighbour = call->shape;
    neighbour.bias = !neighbour.bias;
    CHECK(isfinite(call->seconds) && call->seconds > 0);
    CHECK(*ops_case_name(&call->shape, name));
    CHECK(ops_price(prices, ops, &call->shape) >= 0);
    CHECK(ops_price(prices, ops, &neighbour) >= 0);
}

static void check_calls(struct env *env, const struct ops_prices *prices)
{
    struct device *device;
    struct ops *ops;
    if (prices->measured_count == 0)
        return;
    CHECK_EQ(device_create(env, "dry", 0, &device), STATUS_OK);
    CHECK_EQ(ops_create(device, "ref", DTYPE_F32, &ops), STATUS_OK);
    for (int i = 0; i < prices->measured_count && i < MOST_PRICED; i++)
        check_call(prices, ops, &prices->measured[i]);
    ops_destroy(ops);
    device_destroy(device);
}

static void check_profile(const struct machine_profile *profile)
{
    CHECK(profile->has_ops || profile->has_comm);
    for (int k = 0; profile->has_ops && k < OPS_KIND_COUNT; k++) {
        const struct ops_rate *rate = &profile->ops.rates[k];
        CHECK(rate->call >= 0 && rate->flops_per_second > 0 && rate->bytes_per_second > 0);
    }
    if (profile->has_comm)
        CHECK(profile->comm.inside.bytes_per_second > 0 &&
              profile->comm.between.bytes_per_second > 0 && profile->comm.node >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct env env;
    struct machine_profile profile, again;
    struct text text;
    if (env_create(&env, ignore_line, NULL, LOG_ERROR, 1) != STATUS_OK)
        return 0;
    text_init(&text, &env);
    if (machine_file_parse(&env, (const char *)data, bytes, "input", &profile) == STATUS_OK) {
        check_profile(&profile);
        check_calls(&env, &profile.ops);
        machine_file_print(&profile, &text);
        CHECK_EQ(machine_file_parse(&env, text.data, text.bytes, "printed", &again), STATUS_OK);
        CHECK_EQ(again.ops.measured_count, profile.ops.measured_count);
        machine_profile_free(&env, &again);
        machine_profile_free(&env, &profile);
    }
    text_free(&text);
    env_destroy(&env);
    return 0;
}
