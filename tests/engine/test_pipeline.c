/* Pipelines do not change any bit: any number of PP stages, chunks and copies, any schedule, every
 * ZeRO stage. Ranks are threads of one process. */
#include "engine/ranks.h"

/* With one chunk per stage. */
static const int KINDS[] = {TIMETABLE_GPIPE, TIMETABLE_1F1B, TIMETABLE_ZERO_BUBBLE};

/* Six units: embedding, four blocks, head. */
static struct rig_config pipeline_config(int llama)
{
    struct rig_config config = base_config(llama);
    config.model.layers = 4;
    config.chunks = 1;
    config.kind = TIMETABLE_1F1B;
    return config;
}

static struct trace run_whole(struct rig_config config)
{
    config.pp = 0;
    return run(config, 1);
}

static void test_pp_stages(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        struct trace plain = run_whole(pipeline_config(llama));
        for (int pp = 2; pp <= 4; pp++)
            for (int kind = TIMETABLE_GPIPE; kind <= TIMETABLE_1F1B; kind++)
                for (int dp = 1; dp <= 3; dp++)
                    for (int stage = 0; stage <= 3; stage++) {
                        struct rig_config config = pipeline_config(llama);
                        config.pp = pp, config.kind = kind, config.stage = stage;
                        config.prefetch = dp % 2;
                        config.recompute = (pp + dp + stage) % 3;
                        compare(&plain, config, pp * dp);
                    }
        free(plain.params);
    }
}

/* As many stages as units: the first has only the embedding, the last only the head. */
static void test_one_unit_per_stage(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        struct trace plain = run_whole(pipeline_config(llama));
        for (int k = 0; k < 3; k++)
            for (int stage = 0; stage <= 3; stage += 3) {
                struct rig_config config = pipeline_config(llama);
                config.pp = 6, config.kind = KINDS[k], config.stage = stage;
                compare(&plain, config, 6);
                compare(&plain, config, 12);
            }
        free(plain.params);
    }
}

static void test_interleaved(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        struct trace plain = run_whole(pipeline_config(llama));
        static const int shapes[][2] = {{2, 2}, {2, 3}, {3, 2}};
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int dp = 1; dp <= 2; dp++)
                for (int stage = 0; stage <= 3; stage += 3) {
                    struct rig_config config = pipeline_config(llama);
                    config.pp = shapes[i][0], config.chunks = shapes[i][1];
                    config.kind = TIMETABLE_INTERLEAVED;
                    config.stage = stage, config.prefetch = 1;
                    compare(&plain, config, config.pp * dp);
                }
        free(plain.params);
    }
}

/* Split backward passes, also with as many rounds in flight as possible, and with one. */
static void test_zero_bubble(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct rig_config config = pipeline_config(i % 2);
        config.model.tied = i / 2;
        config.micro_batches = i < 2 ? 2 * MICRO_BATCHES + 1 : MICRO_BATCHES;
        struct trace plain = run_whole(config);
        config.kind = TIMETABLE_ZERO_BUBBLE;
        for (config.pp = 2; config.pp <= 4; config.pp++)
            for (int dp = 1; dp <= 3; dp++)
                for (config.stage = 0; config.stage <= 3; config.stage++) {
                    config.recompute = (config.pp + dp + config.stage + i) % 3;
                    config.eager = (dp + config.stage / 2 + i) % 2;
                    config.prefetch = (config.pp + dp) % 3;
                    compare(&plain, config, config.pp * dp);
                }
        free(plain.params);
    }
}

/* Units without a split backward pass do all of it in the first part. */
static void test_units_without_split_backward(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        struct rig_config config = pipeline_config(llama);
        struct trace plain = run_whole(config);
        config.kind = TIMETABLE_ZERO_BUBBLE, config.pp = 2, config.lumps = true;
        for (config.stage = 0; config.stage <= 3; config.stage++) {
            config.recompute = config.stage % 3;
            compare(&plain, config, config.pp * 2);
        }
        free(plain.params);
    }
}

/* 16-bit params, gradients and sums; tied and untied head. */
static void test_types(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++) {
        struct rig_config config = pipeline_config(i % 2);
        config.model.tied = i / 2 % 2;
        config.type = DTYPE_BF16;
        config.micro_batches = i / 4 % 2 ? 1 : MICRO_BATCHES;
        struct trace plain = run_whole(config);
        config.kind = i / 8 ? TIMETABLE_ZERO_BUBBLE : TIMETABLE_1F1B;
        config.pp = 2 + i % 2;
        config.stage = i % 4;
        config.recompute = i % 3;
        compare(&plain, config, config.pp);
        compare(&plain, config, config.pp * 2);
        free(plain.params);
    }
}

static void test_delays_and_servers(void **state)
{
    (void)state;
    struct trace plain = run_whole(pipeline_config(0));
    for (int i = 0; i < 6; i++) {
        struct rig_config config = pipeline_config(0);
        config.pp = 3;
        config.kind = KINDS[i % 3];
        config.eager = i > 3;
        config.stage = 3 - (i + i / 3) % 3;
        config.servers = i / 3;
        config.delays = 2e-4;
        compare(&plain, config, config.pp * (2 + config.servers));
    }
    free(plain.params);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pp_stages),
        cmocka_unit_test(test_one_unit_per_stage),
        cmocka_unit_test(test_interleaved),
        cmocka_unit_test(test_zero_bubble),
        cmocka_unit_test(test_units_without_split_backward),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_delays_and_servers),
    };
    if (test_device_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
