/* test_ops_attention_first -- the first query of a sequence sees one key, so the gradient of its
 * score is exactly 0: its dq is 0, also after rope's backward pass, and it adds nothing to dk. A
 * kernel that subtracts dout . out from dout . v leaves rounding instead.
 *
 * Without arguments on the CPU; `test_ops_attention_first cuda` on a GPU, exit status 77 = no GPU.
 * SIFR_CUDA_ATTENTION and SIFR_CUDA_EXACT choose among the kernels of a GPU. */
#include "gpu.h"
#include "ops/op_rig.h"

struct subject {
    const char *backend;
    enum dtype type;
    int lengths; /* how many of those below */
    bool fast;   /* see ops_be_fast */
};

/* The reference is too slow for 300. On a GPU, cuDNN does widths such as 80 at 128, and clusters
 * are possible at 512. */
static const int64_t lengths[] = {1, 2, 7, 65, 300, 128, 512};
enum { REF_LENGTHS = 4, CPU_LENGTHS = 5, GPU_LENGTHS = 7 };

/* The last has no tensor cores on a GPU. */
static const int64_t widths[] = {8, 12, 16, 32, 64, 80, 128, 256, 264};
enum { WIDTHS = 9 };

/* A window comes with a cap. */
static const int64_t windows[] = {0, 3};
enum { WINDOWS = 2 };

/* Of all elements, all bits except the signs. */
static bool all_zero(const char *x, int64_t count, size_t element)
{
    for (int64_t i = 0; i < count; i++, x += element) {
        for (size_t byte = 0; byte + 1 < element; byte++)
            if (x[byte] != 0)
                return false;
        if ((x[element - 1] & 0x7f) != 0) /* little-endian */
            return false;
    }
    return true;
}

/* Part of a row of dqkv, in elements: query heads, key heads or value heads */
struct part {
    int64_t at, count;
};

static struct part queries(struct attention a)
{
    return (struct part){0, a.heads * a.head_width};
}

static struct part keys(struct attention a)
{
    return (struct part){a.heads * a.head_width, a.kv_heads * a.head_width};
}

static struct part values(struct attention a)
{
    return (struct part){(a.heads + a.kv_heads) * a.head_width, a.kv_heads * a.head_width};
}

/* Rows 0 .. rows - 1 of every sequence. */
static bool part_is_zero(struct attention a, struct part part, int64_t rows, const char *dqkv,
                         size_t element)
{
    int64_t width = (a.heads + 2 * a.kv_heads) * a.head_width;
    for (int64_t b = 0; b < a.batch; b++)
        for (int64_t t = 0; t < rows; t++) {
            int64_t at = (b * a.tokens + t) * width + part.at;
            if (!all_zero(dqkv + at * (int64_t)element, part.count, element))
                return false;
        }
    return true;
}

static int tensor_of(const struct ops_trial *trial, const char *name)
{
    const struct ops_call *call = ops_trial_call(trial);
    return (int)(ops_find_tensor(call, name) - call->tensors);
}

/* Leaves only the first token of every sequence a gradient, as if only it had a label. */
static void keep_first_dout(struct ops_trial *trial, struct attention a, size_t element)
{
    size_t row = (size_t)(a.heads * a.head_width) * element;
    char *dout = ops_trial_image(trial, tensor_of(trial, "dout"));
    for (int64_t i = 0; i < a.batch * a.tokens; i++)
        if (i % a.tokens != 0)
            memset(dout + (size_t)i * row, 0, row);
    ops_trial_reset(trial);
}

static void check_case(struct rig *rig, const struct ops_case *c)
{
    char name[OPS_CASE_NAME];
    struct attention a = c->attention;
    size_t element = dtype_bytes(rig->ops->type);
    struct ops_trial *trial = rig_trial(rig, c);
    int tensor = tensor_of(trial, "dqkv");
    ops_case_name(c, name);
    ops_trial_run(trial);
    const char *dqkv = ops_trial_read(trial, tensor);
    if (!part_is_zero(a, queries(a), 1, dqkv, element))
        fail_msg("%s: dq of the first query is not 0", name);
    if (a.tokens > 1 && part_is_zero(a, queries(a), a.tokens, dqkv, element))
        fail_msg("%s: dq of all queries is 0", name);

    keep_first_dout(trial, a, element);
    ops_trial_run(trial);
    dqkv = ops_trial_read(trial, tensor);
    if (!part_is_zero(a, queries(a), a.tokens, dqkv, element))
        fail_msg("%s: dq is not 0 although only the first query has a gradient", name);
    if (!part_is_zero(a, keys(a), a.tokens, dqkv, element))
        fail_msg("%s: the first query adds to dk", name);
    if (part_is_zero(a, values(a), 1, dqkv, element))
        fail_msg("%s: the first query adds nothing to dv", name);
    ops_trial_destroy(trial);
}

static void test_first_query(void **state)
{
    static const char *const ops[] = {"attention_backward", "attention_backward_rope"};
    const struct subject *subject = *state;
    struct rig rig;
    rig_open(&rig, subject->backend, subject->type, 2);
    if (subject->fast)
        ops_be_fast(rig.ops);
    for (int l = 0; l < subject->lengths; l++)
        for (int d = 0; d < WIDTHS; d++)
            for (int op = 0; op < 2; op++)
                for (int grouped = 0; grouped < 2; grouped++)
                    for (int w = 0; w < WINDOWS; w++) {
                        struct ops_case c = {.op = ops[op],
                                             .attention = OPS_HEADS(2, lengths[l], grouped ? 4 : 2,
                                                                    grouped ? 1 : 2, widths[d])};
                        c.attention.window = windows[w];
                        c.attention.cap = windows[w] > 0 ? 1 : 0;
                        if (testing_sampled())
                            check_case(&rig, &c);
                    }
    rig_close(&rig);
}

int main(int count, char **words)
{
    static struct subject subjects[] = {
        {"ref", DTYPE_F32, REF_LENGTHS, false},  {"ref", DTYPE_BF16, REF_LENGTHS, false},
        {"ref", DTYPE_F16, REF_LENGTHS, false},  {"cpu", DTYPE_F32, CPU_LENGTHS, false},
        {"cuda", DTYPE_F32, GPU_LENGTHS, false}, {"cuda", DTYPE_BF16, GPU_LENGTHS, false},
        {"cuda", DTYPE_F16, GPU_LENGTHS, false}, {"cuda", DTYPE_BF16, GPU_LENGTHS, true},
    };
    bool on_gpu = count > 1;
    if (on_gpu && test_missing(words[1]))
        return 77;
    struct subject *chosen = on_gpu ? subjects + 4 : subjects;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_first_query, &chosen[0]),
        cmocka_unit_test_prestate(test_first_query, &chosen[1]),
        cmocka_unit_test_prestate(test_first_query, &chosen[2]),
        cmocka_unit_test_prestate(test_first_query, &chosen[3]),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
