/* zero.bucket changes messages and the memory for them, and no bit. Ranks are threads of one
 * process. */
#include "engine/ranks.h"

static struct rig_config bucket_config(int llama, int stage, int64_t bucket)
{
    struct rig_config config = base_config(llama);
    config.stage = stage;
    config.bucket = bucket;
    return config;
}

/* Buckets of less than a block, of a part of a piece and of more than the model. */
static const int64_t buckets[] = {1, 3000, 20000, 1 << 30};
enum { BUCKETS = sizeof buckets / sizeof *buckets };

static void test_stages_and_ranks(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        struct trace plain = run(base_config(llama), 1);
        for (int stage = 0; stage <= 3; stage++)
            for (int ranks = 1; ranks <= 5; ranks++)
                for (int b = 0; b < BUCKETS; b++) {
                    struct rig_config config = bucket_config(llama, stage, buckets[b]);
                    config.prefetch = (ranks + b) % 3;
                    config.delays = b == 1 && ranks == 3 ? 1e-4 : 0;
                    compare(&plain, config, ranks);
                }
        free(plain.params);
    }
}

static void test_servers_and_groups(void **state)
{
    (void)state;
    struct trace plain = run(base_config(1), 1);
    for (int stage = 1; stage <= 3; stage++)
        for (int b = 0; b < BUCKETS; b++) {
            struct rig_config config = bucket_config(1, stage, buckets[b]);
            config.servers = 1 + b % 2;
            compare(&plain, config, 4);
            config.servers = 0;
            config.group = 2;
            compare(&plain, config, 4);
        }
    free(plain.params);
}

/* 16 bits, with fp32 and bf16 sums: one round, and several. */
static void test_precision(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++)
        for (int ranks = 1; ranks <= 5; ranks += 2)
            for (int stage = 0; stage <= 3; stage++) {
                struct rig_config config = base_config(stage % 2);
                config.type = DTYPE_BF16;
                config.compute = wide ? DTYPE_F32 : DTYPE_BF16;
                config.sum_type = ranks == 3 ? DTYPE_BF16 : DTYPE_F32;
                config.ops = wide ? NULL : "ref";
                config.stage = stage;
                struct trace plain = run(config, ranks);
                for (int b = 0; b < BUCKETS; b++) {
                    config.bucket = buckets[b];
                    compare(&plain, config, ranks);
                }
                free(plain.params);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages_and_ranks),
        cmocka_unit_test(test_servers_and_groups),
        cmocka_unit_test(test_precision),
    };
    if (test_device_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
