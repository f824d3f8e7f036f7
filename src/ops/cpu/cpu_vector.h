/* cpu_vector -- the vector type of the machine, and exp, log and sigmoid on it.
 *
 * A vf is one register of floats: 4 lanes (NEON, SSE), 8 (AVX) or 16 (AVX-512), chosen by the
 * level (cpu_level.h). Everything here uses operations that IEEE 754 rounds exactly, so a value has the same bits
 * in any lane. A short tail is loaded with v_load_part, filled with a neutral value, and runs
 * through the same code. Sums over a row use four registers, then single registers, then the tail,
 * and are folded in a fixed tree: their bits depend only on the row's length.
 *
 * v_exp: within 2 ulp of exp, 1.3 with fma (tests/ops/test_ops_vmath.c); 0 below -87.7, inf above
 * 88.37 (2.4e38); NaN stays NaN. v_sigmoid: within 3 ulp. v_log: within 1 ulp, for positive normal
 * numbers only.
 */
#ifndef OPS_CPU_CPU_VECTOR_H
#define OPS_CPU_CPU_VECTOR_H
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__ARM_NEON)
#include <arm_neon.h>
#elif defined(__AVX__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));

static inline vf v_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void v_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

/* The first `count` lanes (fewer than LANES), then `fill`. */
static inline vf v_load_part(const float *p, int64_t count, float fill)
{
    float lanes[LANES];
    for (int64_t i = 0; i < LANES; i++)
        lanes[i] = i < count ? p[i] : fill;
    return v_load(lanes);
}

/* A whole vector, or a tail of `count` lanes followed by zeros. */
static inline vf v_get(const float *p, int64_t count)
{
    return count < LANES ? v_load_part(p, count, 0.0f) : v_load(p);
}

static inline void v_store_part(float *p, vf v, int64_t count)
{
    float lanes[LANES];
    v_store(lanes, v);
    for (int64_t i = 0; i < count; i++)
        p[i] = lanes[i];
}

static inline void v_put(float *p, vf v, int64_t count)
{
    if (count < LANES)
        v_store_part(p, v, count);
    else
        v_store(p, v);
}

static inline vf v_set(float x)
{
    return x - (vf){0};
}

static inline vf v_from_bits(vi bits)
{
    return (vf)bits;
}

/* mask is all ones or all zeros in each lane, as from a comparison */
static inline vf v_select(vi mask, vf yes, vf no)
{
    return v_from_bits((mask & (vi)yes) | (~mask & (vi)no));
}

static inline vf v_abs(vf x)
{
    return v_from_bits((vi)x & 0x7fffffff);
}

/* a b + c, rounded once where the machine can */
static inline vf v_fma(vf a, vf b, vf c)
{
#if defined(__ARM_NEON) && defined(__aarch64__)
    return vfmaq_f32(c, a, b);
#elif defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX__) && defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

static inline vf v_sqrt(vf x)
{
#if defined(__ARM_NEON) && defined(__aarch64__)
    return vsqrtq_f32(x);
#elif defined(__AVX512F__)
    return _mm512_sqrt_ps(x);
#elif defined(__AVX__)
    return _mm256_sqrt_ps(x);
#else
    for (int i = 0; i < LANES; i++)
        x[i] = sqrtf(x[i]);
    return x;
#endif
}

/* x times in double, rounded to float */
static inline vf v_mul_double(vf x, double times)
{
#if defined(__ARM_NEON) && defined(__aarch64__)
    float64x2_t low = vcvt_f64_f32(vget_low_f32(x)) * times;
    float64x2_t high = vcvt_high_f64_f32(x) * times;
    return vcvt_high_f32_f64(vcvt_f32_f64(low), high);
#elif defined(__AVX512F__)
    __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x)) * times;
    __m256d upper = _mm512_extractf64x4_pd(_mm512_castps_pd(x), 1);
    __m512d high = _mm512_cvtps_pd(_mm256_castpd_ps(upper)) * times;
    __m512d lower = _mm512_castpd256_pd512(_mm256_castps_pd(_mm512_cvtpd_ps(low)));
    return _mm512_castpd_ps(_mm512_insertf64x4(lower, _mm256_castps_pd(_mm512_cvtpd_ps(high)), 1));
#elif defined(__AVX__)
    __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x)) * times;
    __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)) * times;
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(low)), _mm256_cvtpd_ps(high),
                                1);
#else
    for (int i = 0; i < LANES; i++)
        x[i] = (float)((double)x[i] * times);
    return x;
#endif
}

/* The larger and the smaller; NaN when b is NaN */
static inline vf v_max(vf a, vf b)
{
#if defined(__ARM_NEON) && defined(__aarch64__)
    return vmaxq_f32(a, b);
#elif defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#elif defined(__AVX__)
    return _mm256_max_ps(a, b);
#else
    return v_select(a > b, a, b);
#endif
}

static inline vf v_min(vf a, vf b)
{
#if defined(__ARM_NEON) && defined(__aarch64__)
    return vminq_f32(a, b);
#elif defined(__AVX512F__)
    return _mm512_min_ps(a, b);
#elif defined(__AVX__)
    return _mm256_min_ps(a, b);
#else
    return v_select(a < b, a, b);
#endif
}

static inline float v_fold_sum(vf v)
{
    float lane[LANES];
    v_store(lane, v);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

static inline float v_fold_max(vf v)
{
    float max = v[0];
    for (int i = 1; i < LANES; i++)
        max = v[i] > max ? v[i] : max;
    return max;
}

/* exp(x) = 2^n exp(r) with |r| <= ln 2 / 2; exp(r) = 1 + r + r^2 q(r), q minimax of degree 4
 * (3e-9). Adding 1.5 * 2^23 + 127 leaves n + 127 in the last bits, which shifted into the exponent
 * are 2^n: 0 for n = -127, inf for n = 128. Of `count` vectors, all below 88.5 or NaN; step by step
 * for all of them, since each step waits for the one before it. */
static inline __attribute__((always_inline)) void v_exp_below(int count, vf *x)
{
    enum { MOST = 4 };
    const vf shift = v_set(0x1.8000fep23f);
    vf z[MOST], r[MOST], r2[MOST], low[MOST], high[MOST];
    for (int i = 0; i < count; i++) {
        x[i] = v_max(v_set(-88.0f), x[i]); /* n from -127 */
        z[i] = v_fma(x[i], v_set(0x1.715476p0f), shift);
    }
    for (int i = 0; i < count; i++) {
        r[i] = z[i] - shift; /* n */
        /* ln 2 in two parts, the first exact in n times it */
        x[i] = v_fma(r[i], v_set(-0x1.62e400p-1f), x[i]);
    }
    for (int i = 0; i < count; i++) {
        r[i] = v_fma(r[i], v_set(-0x1.7f7d1cp-20f), x[i]);
        r2[i] = r[i] * r[i];
    }
    for (int i = 0; i < count; i++) {
        low[i] = v_fma(v_set(0x1.555492p-3f), r[i], v_set(0x1.fffffcp-2f));
        high[i] = v_fma(v_set(0x1.123a20p-7f), r[i], v_set(0x1.5558f2p-5f));
        high[i] = v_fma(v_set(0x1.6a23cep-10f), r2[i], high[i]);
    }
    for (int i = 0; i < count; i++) {
        low[i] = v_fma(high[i], r2[i], low[i]);
        x[i] = v_fma(low[i], r2[i], r[i] + v_set(1.0f)) * v_from_bits((vi)z[i] << 23);
    }
}

static inline vf v_exp(vf x)
{
    x = v_min(v_set(88.5f), x); /* n up to 128 */
    v_exp_below(1, &x);
    return x;
}

/* log(x) = n ln 2 + log(m) with m = x / 2^n from sqrt(1/2) to sqrt(2); log(m) = 2 atanh(s), s = (m -
 * 1) / (m + 1), |s| < 0.172, by its series up to s^9 (2e-9). With m = 1 + f, 2 s = f - s f. */
static inline vf v_log(vf x)
{
    const vi half = (vi){0} + 0x3f3504f3; /* the bits of sqrt(1/2) */
    vi n = ((vi)x - half) >> 23;
    vf f = v_from_bits((vi)x - (n << 23)) - v_set(1.0f), e = __builtin_convertvector(n, vf);
    vf s = f / (f + v_set(2.0f)), s2 = s * s;
    vf series = v_fma(s2, v_set(2.0f / 9), v_set(2.0f / 7));
    series = v_fma(v_fma(series, s2, v_set(2.0f / 5)), s2, v_set(2.0f / 3));
    vf tail = v_fma(s * s2, series, e * v_set(0x1.7f7d1cp-20f)); /* ln 2 in two parts, as for exp */
    return v_fma(e, v_set(0x1.62e400p-1f), f - (s * f - tail));
}

/* 1 / (1 + exp(-x)) */
static inline vf v_sigmoid(vf x)
{
    return v_set(1.0f) / (v_set(1.0f) + v_exp(-x));
}

/* tanh(x): below 0.55 x + x^3 q(x^2), q of degree 4 (4e-9), which keeps small values; above that 1 -
 * 2 / (exp(2 |x|) + 1) with the sign of x. */
static inline vf v_tanh(vf x)
{
    vf size = v_abs(x), z = x * x;
    vf q = v_fma(v_set(-6.61022784e-3f), z, v_set(2.13093887e-2f));
    q = v_fma(v_fma(v_fma(q, z, v_set(-5.39094288e-2f)), z, v_set(0.133331137f)), z,
              v_set(-0.33333332f));
    vf large = v_set(1.0f) - v_set(2.0f) / (v_exp(size + size) + v_set(1.0f));
    large = v_from_bits((vi)large | ((vi)x & (int32_t)0x80000000));
    return v_select(size < v_set(0.55f), v_fma(q * z, x, x), large);
}

/* The tanh form of GELU, written with tanh(u) = 2 sigmoid(2u) - 1: 0.5 x (1 + tanh(u)) = x
 * sigmoid(2u), 2u = 2 sqrt(2/pi) (x + 0.044715 x^3). It keeps the small values far left of zero
 * that 1 + tanh cancels. */
#define GELU_1 1.5957691216057308f
#define GELU_3 0.07135481282552477f

static inline vf v_gelu(vf x)
{
    return x / (v_set(1.0f) + v_exp(-x * v_fma(x * x, v_set(GELU_3), v_set(GELU_1))));
}

/* s + x s (1 - s) d(2u)/dx with s = sigmoid(2u); 1 - s is e s, e = exp(-2u), which does not cancel.
 * e stays below inf. */
static inline vf v_gelu_slope(vf x)
{
    vf square = x * x;
    vf e = v_exp(v_min(v_set(80.0f), -x * v_fma(square, v_set(GELU_3), v_set(GELU_1))));
    vf s = v_set(1.0f) / (v_set(1.0f) + e);
    vf du = v_fma(square, v_set(3 * GELU_3), v_set(GELU_1));
    return v_fma(x * s * (e * s), du, s);
}

/* --- sums over one row ---------------------------------------------------------------------- */

/* sum of x[i] */
static inline float v_row_sum(const float *x, int64_t n)
{
    vf s[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int k = 0; k < 4; k++)
            s[k] += v_load(x + i + k * LANES);
    for (; i + LANES <= n; i += LANES)
        s[0] += v_load(x + i);
    if (i < n)
        s[1] += v_load_part(x + i, n - i, 0.0f);
    return v_fold_sum((s[0] + s[1]) + (s[2] + s[3]));
}

/* sum of (x[i] - center)^2 */
static inline float v_row_squares(const float *x, float center, int64_t n)
{
    vf s[4] = {{0}}, c = v_set(center);
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int k = 0; k < 4; k++) {
            vf d = v_load(x + i + k * LANES) - c;
            s[k] = v_fma(d, d, s[k]);
        }
    for (; i < n; i += LANES) {
        vf d = (n - i < LANES ? v_load_part(x + i, n - i, center) : v_load(x + i)) - c;
        s[0] = v_fma(d, d, s[0]);
    }
    return v_fold_sum((s[0] + s[1]) + (s[2] + s[3]));
}

/* sum of x[i] y[i] */
static inline float v_row_dot(const float *x, const float *y, int64_t n)
{
    vf s[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int k = 0; k < 4; k++)
            s[k] = v_fma(v_load(x + i + k * LANES), v_load(y + i + k * LANES), s[k]);
    for (; i + LANES <= n; i += LANES)
        s[0] = v_fma(v_load(x + i), v_load(y + i), s[0]);
    if (i < n)
        s[1] = v_fma(v_load_part(x + i, n - i, 0.0f), v_load_part(y + i, n - i, 0.0f), s[1]);
    return v_fold_sum((s[0] + s[1]) + (s[2] + s[3]));
}

/* largest x[i]; n is at least 1 */
static inline float v_row_max(const float *x, int64_t n)
{
    vf m[4] = {v_set(x[0]), v_set(x[0]), v_set(x[0]), v_set(x[0])};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int k = 0; k < 4; k++)
            m[k] = v_max(m[k], v_load(x + i + k * LANES));
    float max = v_fold_max(v_max(v_max(m[0], m[1]), v_max(m[2], m[3])));
    for (; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

/* largest |x[i]| */
static inline float v_row_max_abs(const float *x, int64_t n)
{
    vf m[2] = {{0}};
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES)
        for (int k = 0; k < 2; k++)
            m[k] = v_max(m[k], v_abs(v_load(x + i + k * LANES)));
    for (; i < n; i += LANES)
        m[0] = v_max(m[0], v_abs(v_get(x + i, n - i)));
    return v_fold_max(v_max(m[0], m[1]));
}

/* y[i] = exp(x[i] - shift); returns their sum. y may be x, or NULL for the sum alone. */
static inline float v_row_exp(float *y, const float *x, float shift, int64_t n)
{
    vf s[4] = {{0}}, c = v_set(shift);
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int k = 0; k < 4; k++) {
            vf e = v_exp(v_load(x + i + k * LANES) - c);
            s[k] += e;
            if (y)
                v_store(y + i + k * LANES, e);
        }
    for (; i < n; i += LANES) {
        int64_t part = n - i < LANES ? n - i : LANES;
        vf e = v_exp(v_load_part(x + i, part, -INFINITY) - c); /* exp(-inf) = 0 */
        s[0] += e;
        if (y)
            v_store_part(y + i, e, part);
    }
    return v_fold_sum((s[0] + s[1]) + (s[2] + s[3]));
}

/* y[i] = cap tanh(x[i] / cap); y may be x */
static inline void v_row_softcap(float *y, const float *x, float cap, int64_t n)
{
    vf inverse = v_set(1.0f / cap), c = v_set(cap);
    for (int64_t i = 0; i < n; i += LANES)
        v_put(y + i, c * v_tanh(v_get(x + i, n - i) * inverse), n - i);
}

/* d[i] *= 1 - (y[i] / cap)^2: through v_row_softcap, whose result y is */
static inline void v_row_softcap_slope(float *d, const float *y, float cap, int64_t n)
{
    vf inverse = v_set(1.0f / cap), one = v_set(1.0f);
    for (int64_t i = 0; i < n; i += LANES) {
        vf t = v_get(y + i, n - i) * inverse;
        v_put(d + i, v_get(d + i, n - i) * (one - t * t), n - i);
    }
}

/* --- GELU over one row; four vectors at a time keep the pipes full -------------------------- */

/* y[i] = gelu(x[i]); y may be x */
static inline void v_row_gelu(float *y, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int k = 0; k < 4; k++)
            v_store(y + i + k * LANES, v_gelu(v_load(x + i + k * LANES)));
    for (; i < n; i += LANES) {
        int64_t part = n - i < LANES ? n - i : LANES;
        v_store_part(y + i, v_gelu(v_load_part(x + i, part, 0.0f)), part);
    }
}

/* d[i] = dy[i] gelu'(x[i]); d may be dy */
static inline void v_row_gelu_slope(float *d, const float *dy, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int k = 0; k < 4; k++)
            v_store(d + i + k * LANES,
                    v_load(dy + i + k * LANES) * v_gelu_slope(v_load(x + i + k * LANES)));
    for (; i < n; i += LANES) {
        int64_t part = n - i < LANES ? n - i : LANES;
        vf slope = v_gelu_slope(v_load_part(x + i, part, 0.0f));
        v_store_part(d + i, v_load_part(dy + i, part, 0.0f) * slope, part);
    }
}

#endif
