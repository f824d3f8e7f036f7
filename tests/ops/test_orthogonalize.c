/* What ops_orthogonalize promises: singular values near 1, the same for a matrix, its transpose and
 * its multiples, the singular vectors of the input, and zeros for zeros.
 *
 * Without arguments it tests the back ends that run on any machine; with `cuda`, a GPU in every
 * type, and exits with 77 if there is none.
 */
#include <math.h>
#include "base/rng.h"
#include "gpu.h"
#include "ops/op_rig.h"

enum { MOST = 96 * 64, NO_GPU = 77 };

struct subject {
    const char *backend;
    enum dtype type;
};

/* --- matrices on the host, in double -------------------------------------------------------- */

static void draw(int64_t count, uint64_t seed, double *x)
{
    struct rng rng = rng_stream(seed, "orthogonalize");
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)rng_normal(rng, (uint64_t)i);
}

static void transpose(int64_t rows, int64_t columns, const double *x, double *out)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            out[j * rows + i] = x[i * columns + j];
}

/* Turns rows p and q of x so that they become orthogonal. Returns the cosine of their angle
 * before. */
static double rotate(int64_t columns, double *p, double *q)
{
    double pp = 0, qq = 0, pq = 0;
    for (int64_t k = 0; k < columns; k++) {
        pp += p[k] * p[k];
        qq += q[k] * q[k];
        pq += p[k] * q[k];
    }
    if (pq == 0)
        return 0;
    double zeta = (qq - pp) / (2 * pq);
    double t = (zeta >= 0 ? 1 : -1) / (fabs(zeta) + sqrt(1 + zeta * zeta));
    double cosine = 1 / sqrt(1 + t * t), sine = cosine * t;
    for (int64_t k = 0; k < columns; k++) {
        double a = p[k], b = q[k];
        p[k] = cosine * a - sine * b;
        q[k] = sine * a + cosine * b;
    }
    return fabs(pq) / sqrt(pp * qq);
}

/* One-sided Jacobi: when all rows are orthogonal, their lengths are the singular values. Changes
 * x, which has at most as many rows as columns. */
static void singular_values(int64_t rows, int64_t columns, double *x, double *values)
{
    double most = 1;
    for (int sweep = 0; sweep < 60 && most > 1e-13; sweep++) {
        most = 0;
        for (int64_t p = 0; p < rows; p++)
            for (int64_t q = p + 1; q < rows; q++)
                most = fmax(most, rotate(columns, x + p * columns, x + q * columns));
    }
    assert_true(most <= 1e-13);
    for (int64_t p = 0; p < rows; p++) {
        values[p] = 0;
        for (int64_t k = 0; k < columns; k++)
            values[p] += x[p * columns + k] * x[p * columns + k];
        values[p] = sqrt(values[p]);
    }
}

/* ||a - b|| / ||b|| */
static double difference(int64_t count, const double *a, const double *b)
{
    double sum = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return sqrt(sum / norm);
}

/* --- the op --------------------------------------------------------------------------------- */

/* x becomes what the back end makes of it. */
static void orthogonalize(struct rig *rig, int64_t rows, int64_t columns, double *x)
{
    enum dtype type = rig->ops->type;
    size_t bytes = (size_t)(rows * columns) * dtype_bytes(type);
    size_t scratch_bytes = ops_orthogonalize_scratch(rig->ops, rows, columns);
    double image[MOST];
    void *data, *scratch;
    assert_true(rows * columns <= MOST);
    assert_ok(device_alloc(rig->device, MEM_SCRATCH, "matrix", bytes, &data));
    assert_ok(device_alloc(rig->device, MEM_SCRATCH, "scratch", scratch_bytes, &scratch));
    dtype_convert(image, type, x, DTYPE_F64, rows * columns);
    device_copy(rig->stream, data, image, bytes);
    ops_orthogonalize(rig->ops, rig->stream, rows, columns, data, scratch);
    device_copy(rig->stream, image, data, bytes);
    assert_ok(stream_sync(rig->stream));
    dtype_convert(x, DTYPE_F64, image, type, rows * columns);
    device_free(rig->device, data);
    device_free(rig->device, scratch);
}

/* How far two results of the same matrix may be apart: the iterations amplify rounding. */
static double tolerance(const struct rig *rig, bool cuda)
{
    switch (rig->ops->type) {
    case DTYPE_BF16: return 20 * 0x1p-8;
    case DTYPE_F16: return 20 * 0x1p-11;
    default: return cuda ? 20 * 0x1p-11 : 8e-6; /* TF32 */
    }
}

static const struct {
    int64_t rows, columns;
} shapes[] = {{1, 1}, {1, 70}, {70, 1}, {13, 5}, {5, 13}, {24, 96}, {96, 24}, {64, 96}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void check_values(struct rig *rig, int64_t rows, int64_t columns)
{
    double x[MOST], wide[MOST], values[MOST];
    draw(rows * columns, 3, x);
    orthogonalize(rig, rows, columns, x);
    if (rows > columns)
        transpose(rows, columns, x, wide);
    else
        memcpy(wide, x, sizeof wide);
    int64_t least = rows < columns ? rows : columns;
    singular_values(least, rows + columns - least, wide, values);
    for (int64_t i = 0; i < least; i++)
        if (!(0.6 < values[i] && values[i] < 1.25))
            fail_msg("%lldx%lld: singular value %.4f", (long long)rows, (long long)columns,
                     values[i]);
}

static void test_singular_values(void **state)
{
    const struct subject *subject = *state;
    struct rig rig;
    rig_open(&rig, subject->backend, subject->type, 2);
    for (int i = 0; i < SHAPES; i++)
        check_values(&rig, shapes[i].rows, shapes[i].columns);
    rig_close(&rig);
}

/* The result of the transpose is the transpose of the result; that of a multiple is the same, also
 * where squares leave the range of f32. */
static void check_symmetries(struct rig *rig, int64_t rows, int64_t columns, double bound)
{
    int64_t count = rows * columns;
    double x[MOST], turned[MOST], back[MOST];
    draw(count, 4, x);
    transpose(rows, columns, x, turned);
    orthogonalize(rig, columns, rows, turned);
    transpose(columns, rows, turned, back);
    /* f16 holds 2^-14 .. 65504 in full. */
    int last = rig->ops->type == DTYPE_F16 ? 3 : 90;
    for (int power = -last; power <= last; power += last) {
        double y[MOST];
        for (int64_t i = 0; i < count; i++)
            y[i] = ldexp(x[i], power);
        orthogonalize(rig, rows, columns, y);
        double off = difference(count, y, back);
        if (!(off <= bound))
            fail_msg("%lldx%lld times 2^%d: off by %.2e from the transpose", (long long)rows,
                     (long long)columns, power, off);
    }
}

static void test_symmetries(void **state)
{
    const struct subject *subject = *state;
    bool cuda = strcmp(subject->backend, "cuda") == 0;
    struct rig rig;
    rig_open(&rig, subject->backend, subject->type, 2);
    for (int i = 0; i < SHAPES; i++)
        check_symmetries(&rig, shapes[i].rows, shapes[i].columns, tolerance(&rig, cuda));
    rig_close(&rig);
}

/* Row i of the input has length 1 + i in direction i and the rows are orthogonal: so are those of
 * the result, in the same directions. */
static void test_directions(void **state)
{
    enum { ROWS = 6, COLUMNS = 11 };
    const struct subject *subject = *state;
    struct rig rig;
    double x[ROWS * COLUMNS] = {0};
    rig_open(&rig, subject->backend, subject->type, 2);
    for (int i = 0; i < ROWS; i++)
        x[i * COLUMNS + (3 * i + 1) % COLUMNS] = i % 2 ? -1 - i : 1 + i;
    orthogonalize(&rig, ROWS, COLUMNS, x);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) {
            double value = (i % 2 ? -1 : 1) * x[i * COLUMNS + j];
            if (j == (3 * i + 1) % COLUMNS)
                assert_true(0.6 < value && value < 1.25);
            else
                assert_true(value == 0);
        }
    rig_close(&rig);
}

static void test_zeros(void **state)
{
    const struct subject *subject = *state;
    struct rig rig;
    rig_open(&rig, subject->backend, subject->type, 2);
    for (int s = 0; s < SHAPES; s++) {
        double x[MOST] = {0};
        orthogonalize(&rig, shapes[s].rows, shapes[s].columns, x);
        for (int64_t i = 0; i < shapes[s].rows * shapes[s].columns; i++)
            assert_true(x[i] == 0);
    }
    rig_close(&rig);
}

static int test_subject(const char *backend, enum dtype type)
{
    struct subject subject = {backend, type};
    char name[64];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_singular_values, &subject),
        cmocka_unit_test_prestate(test_symmetries, &subject),
        cmocka_unit_test_prestate(test_directions, &subject),
        cmocka_unit_test_prestate(test_zeros, &subject),
    };
    snprintf(name, sizeof name, "%s %s", backend, dtype_name(type));
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

int main(int count, char **words)
{
    if (count > 1 && strcmp(words[1], "cuda") == 0)
        return test_missing("cuda")
                   ? NO_GPU
                   : test_subject("cuda", DTYPE_F32) + test_subject("cuda", DTYPE_BF16) +
                         test_subject("cuda", DTYPE_F16);
    return test_subject("ref", DTYPE_F32) + test_subject("ref", DTYPE_F64) +
           test_subject("cpu", DTYPE_F32);
}
