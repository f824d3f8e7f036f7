/* test_hopper_product -- products of hopper_product.cuh on the host: no GPU is needed. Whole clusters
 * run on fake instructions (fake_hopper.h), with loads, turns and buffers in orders that a seed draws.
 * The test checks every element of the results, and that no thread waits for ever. Elements are small
 * integers, so that sums are exact; those of weights' gradients also are others. */
#include "ops/fake_hopper.h"
#include <math.h>
#include "ops/cuda/product/hopper_product.cuh"

using namespace hopper;
typedef __nv_bfloat16 number;

/* Calls f(i, column) for the registers of 16 columns; column: of the first of the two numbers. */
template <class F> static void each_register(int sixteen, F f)
{
    for (int i = 0; i < 4; i++)
        f(i, 16 * sixteen + i / 2 * 8 + (int)threadIdx.x % 4 * 2);
}

/* TWO: the sum plus its column's number, and its double. */
struct twice {
    int column;
    void fetch(const product::job &j, int h)
    {
        column = j.column + 64 * h;
    }
    void of(int sixteen, const float *sums, uint32_t (&out)[4], uint32_t (&out2)[4])
    {
        each_register(sixteen, [&](int i, int at) {
            const float a = sums[2 * i] + (float)((column + at) % 7);
            const float b = sums[2 * i + 1] + (float)((column + at + 1) % 7);
            out[i] = packed<number>(a, b);
            out2[i] = packed<number>(2 * a, 2 * b);
        });
    }
};

/* OVER: the sum minus what is read. */
struct minus {
    void fetch(const product::job &, int) {}
    void of(int, const float *sums, uint32_t (&word)[4])
    {
        for (int i = 0; i < 4; i++) {
            const float2 x = unpacked<number>(word[i]);
            word[i] = packed<number>(sums[2 * i] - x.x, sums[2 * i + 1] - x.y);
        }
    }
};

/* GATE: gate minus twice up, of the rounded ones. */
static float gated(float gate, float up)
{
    return gate - 2 * up;
}

struct gate {
    bool third;
    void fetch(const product::job &, int) {}
    void of(const uint32_t (&gate)[4], const uint32_t (&up)[4], uint32_t (&word)[4])
    {
        for (int i = 0; i < 4; i++) {
            const float2 g = unpacked<number>(gate[i]), u = unpacked<number>(up[i]);
            word[i] = packed<number>(gated(g.x, u.x), gated(g.y, u.y));
        }
    }
};

/* SLOPES: the sum minus gate, the sum plus twice up, and the third of GATE. */
struct slopes {
    void fetch(const product::job &, int) {}
    void of(const float *sums, uint32_t (&gate)[4], uint32_t (&up)[4], uint32_t (&word)[4])
    {
        for (int i = 0; i < 4; i++) {
            const float2 g = unpacked<number>(gate[i]), u = unpacked<number>(up[i]);
            word[i] = packed<number>(gated(g.x, u.x), gated(g.y, u.y));
            gate[i] = packed<number>(sums[2 * i] - g.x, sums[2 * i + 1] - g.y);
            up[i] = packed<number>(sums[2 * i] + 2 * u.x, sums[2 * i + 1] + 2 * u.y);
        }
    }
};

struct sizes {
    int rows, columns, depth, clusters;
};

static std::vector<uint16_t> numbers(int64_t count, int most, std::mt19937 &draw)
{
    std::vector<uint16_t> x((size_t)count);
    for (auto &v : x)
        v = fake::rounded((float)((int)(draw() % (2 * most + 1)) - most));
    return x;
}

/* A product's matrices. Those of the epilogue are (rows, halves * columns): gate and up of GATE and
 * SLOPES are the halves of `first`, whose results take its place in SLOPES; `second` is TWO's other
 * result or the third of the others. */
template <class W> struct matrices {
    enum {
        HALVES = W::SCHEME == product::GATE || W::SCHEME == product::SLOPES ? 2 : 1,
        B_HALVES = W::SCHEME == product::GATE ? 2 : 1
    };
    sizes s;
    std::vector<uint16_t> a, b, read, first, second;

    matrices(const sizes &of, std::mt19937 &draw) : s(of)
    {
        const int64_t count = (int64_t)s.rows * s.columns;
        a = numbers((int64_t)s.rows * s.depth, W::SCHEME == product::GATE ? 5 : 1, draw);
        b = numbers((int64_t)s.columns * s.depth * B_HALVES, 1, draw);
        read = numbers(count * HALVES, 9, draw);
        first.assign((size_t)(count * HALVES), 0x7fc0);
        second.assign((size_t)count, 0x7fc0);
        if (W::SCHEME == product::SLOPES) /* in place */
            first = read;
    }

    product::maps maps(bool third)
    {
        const int columns = s.columns, wide = HALVES * columns;
        product::maps of = {};
        of.a = fake::map_of(a.data(), s.rows, s.depth, W::ROWS / 2);
        for (int h = 0; h < B_HALVES; h++)
            of.b[h] = W::DOWN ? fake::map_of(b.data() + h * columns, s.depth, columns,
                                             product::DEPTH, B_HALVES * columns)
                              : fake::map_of(b.data() + (int64_t)h * columns * s.depth, columns,
                                             s.depth, product::COLUMNS / B_HALVES);
        for (int h = 0; h < HALVES; h++) {
            uint16_t *in = W::SCHEME == product::SLOPES ? first.data() : read.data();
            of.side[h] =
                fake::map_of(in + h * columns, s.rows, columns, product::SIDE_ROWS<W>, wide);
            of.out[h] =
                fake::map_of(first.data() + h * columns, s.rows, columns, product::STRIP, wide);
        }
        if (third)
            of.out[HALVES] = fake::map_of(second.data(), s.rows, columns, product::STRIP);
        return of;
    }

    /* Column c of B; of GATE's halves together */
    float sum(int64_t r, int64_t c) const
    {
        const int64_t columns = (int64_t)s.columns * B_HALVES;
        float sum = 0;
        for (int64_t k = 0; k < s.depth; k++)
            sum += fake::value(a[(size_t)(r * s.depth + k)]) *
                   fake::value(b[(size_t)(W::DOWN ? k * columns + c : c * s.depth + k)]);
        return sum;
    }

    bool is_right(int64_t r, int64_t c, bool third) const
    {
        const size_t one = (size_t)(r * s.columns + c);
        const size_t at = (size_t)(r * s.columns * HALVES + c), up = at + (size_t)s.columns;
        const float x = sum(r, c), found = fake::value(read[at]);
        const uint16_t none = 0x7fc0;
        if (W::SCHEME == product::TWO) {
            const float plus = x + (float)(c % 7);
            return first[at] == fake::rounded(plus) && second[one] == fake::rounded(2 * plus);
        }
        if (W::SCHEME == product::OVER)
            return first[at] == fake::rounded(x - found) && second[one] == none;
        if (W::SCHEME == product::GATE) {
            const uint16_t g = fake::rounded(x), u = fake::rounded(sum(r, s.columns + c));
            return first[at] == g && first[up] == u &&
                   second[one] ==
                       (third ? fake::rounded(gated(fake::value(g), fake::value(u))) : none);
        }
        const float other = fake::value(read[up]);
        return first[at] == fake::rounded(x - found) && first[up] == fake::rounded(x + 2 * other) &&
               second[one] == fake::rounded(gated(found, other));
    }
};

/* False, with a message: not to the end. */
template <class W, typename T, class E>
static bool run(const sizes &s, const product::maps &of, unsigned seed, const E &e)
{
    const product::problem p = product::problem_of<W>(s.rows, s.columns, s.depth);
    std::vector<int> threads = {0, 32}; /* the others that load do nothing */
    for (int t = 128; t < product::THREADS; t++)
        threads.push_back(t);
    const bool ended =
        fake::run(2 * s.clusters, threads, sizeof(product::memory<W>), seed, [&](char *raw) {
            product::run_block<W, T>(*reinterpret_cast<product::memory<W> *>(raw), p, of, e);
        });
    if (!ended)
        fprintf(stderr, "threads wait for ever, or results were not stored\n");
    return ended;
}

template <class W> static void complain(const sizes &s, unsigned seed)
{
    fprintf(stderr, "scheme %d, %d x %d over %d, %d clusters, tiles of %d, seed %u\n",
            (int)W::SCHEME, s.rows, s.columns, s.depth, s.clusters, (int)W::ROWS, seed);
}

template <class W, class E> static bool test(const sizes &s, unsigned seed, E e)
{
    std::mt19937 draw(seed);
    matrices<W> all(s, draw);
    bool third = W::SCHEME != product::OVER;
    if constexpr (W::SCHEME == product::GATE)
        third = e.third;
    const product::maps of = all.maps(third);
    bool right = run<W, number>(s, of, seed, e);
    for (int64_t r = 0; right && r < s.rows; r++)
        for (int64_t c = 0; right && c < s.columns; c++) {
            right = all.is_right(r, c, third);
            if (!right)
                fprintf(stderr, "row %d, column %d is wrong\n", (int)r, (int)c);
        }
    if (!right)
        complain<W>(s, seed);
    return right;
}

/* --- weights' gradients: A turned, with the schemes of one result -------------------------------- */

enum elements {
    WHOLE, /* their sums are rounded */
    TINY,  /* the results are subnormal, or round to zeros of both signs */
    ANY    /* the order of a sum matters */
};

/* dw (rows, columns) = a^T b, over `depth` tokens; behind each row of A and B are `gap` columns. */
template <typename T> struct gradient {
    sizes s;
    int gap;
    std::vector<uint16_t> a, b, dw; /* the model's */
    std::vector<float> before;      /* sums */

    gradient(const sizes &of, int gap, elements kind, unsigned seed) : s(of), gap(gap)
    {
        const int tiny = std::is_same<T, __half>::value ? -13 : -70; /* exponent of two */
        std::mt19937 draw(seed);
        const auto fraction = [&] { return (float)((int)(draw() % 2001) - 1000) / 1000; };
        const auto element = [&] {
            return kind == ANY     ? 2 * fraction()
                   : kind == WHOLE ? (float)((int)(draw() % 61) - 30)
                                   : ldexpf((float)((int)(draw() % 5) - 2), tiny);
        };
        const auto fill = [&](std::vector<uint16_t> &x, int columns) {
            x.assign((size_t)s.depth * (columns + gap), 0x7fff); /* not a number */
            for (int64_t k = 0; k < s.depth; k++)
                for (int64_t c = 0; c < columns; c++)
                    x[k * (columns + gap) + c] = fake::rounded<T>(element());
        };
        fill(a, s.rows);
        fill(b, s.columns);
        for (int64_t i = 0; i < (int64_t)s.rows * s.columns; i++) {
            const int exponent = kind == TINY ? 2 * tiny : (int)(draw() % 20) - 5;
            before.push_back(i % 8 == 0 ? -0.0f : ldexpf(fraction(), exponent));
        }
        for (int64_t r = 0; r < s.rows; r++)
            for (int64_t c = 0; c < s.columns; c++) {
                float sum = 0;
                for (int64_t k = 0; k < s.depth; k++)
                    sum += fake::value<T>(a[k * (s.rows + gap) + r]) *
                           fake::value<T>(b[k * (s.columns + gap) + c]);
                dw.push_back(fake::rounded<T>(sum));
            }
    }

    template <class W, typename R>
    bool is(std::vector<R> found, const std::vector<R> &right, unsigned seed)
    {
        product::maps of = {};
        of.a = fake::map_of(a.data(), s.depth, s.rows, product::A_ROWS<W>, s.rows + gap);
        of.b[0] = fake::map_of(b.data(), s.depth, s.columns, product::DEPTH, s.columns + gap);
        if (W::SCHEME == product::ADD)
            of.side[0] = fake::map_of(found.data(), s.rows, s.columns, product::SIDE_ROWS<W>);
        of.out[0] = fake::map_of(found.data(), s.rows, s.columns, product::STRIP);
        bool good = run<W, T>(s, of, seed, product::rounding<T>{});
        for (size_t i = 0; good && i < right.size(); i++) {
            good = memcmp(&found[i], &right[i], sizeof(R)) == 0; /* zeros have signs */
            if (!good)
                fprintf(stderr, "row %d, column %d is wrong\n", (int)i / s.columns,
                        (int)i % s.columns);
        }
        if (!good)
            complain<W>(s, seed);
        return good;
    }

    template <int ROWS> bool test(unsigned seed)
    {
        std::vector<float> put, added;
        for (size_t i = 0; i < dw.size(); i++) {
            put.push_back(fake::value<T>(dw[i]));
            added.push_back(before[i] + put[i]);
        }
        bool good = is<product::way<ROWS, true, product::ONE, true>>(
            std::vector<uint16_t>(dw.size(), 0x7fff), dw, seed);
        good = is<product::way<ROWS, true, product::PUT, true>>(before, put, seed + 1) && good;
        return is<product::way<ROWS, true, product::ADD, true>>(before, added, seed + 2) && good;
    }
};

template <typename T> static bool test_gradients(unsigned seed)
{
    static const struct {
        sizes s;
        int gap;
        elements kind;
    } all[] = {{{8, 8, 1, 1}, 0, WHOLE},      {{200, 264, 72, 1}, 8, ANY},
               {{400, 136, 130, 1}, 24, ANY}, {{72, 1096, 24, 2}, 0, TINY},
               {{584, 264, 40, 1}, 0, WHOLE}, {{600, 72, 200, 1}, 64, WHOLE}};
    bool right = true;
    for (const auto &one : all) {
        gradient<T> g(one.s, one.gap, one.kind, seed++);
        right = g.template test<192>(seed) && right;
        right = g.template test<128>(seed + 10) && right;
    }
    return right;
}

template <int ROWS, bool DOWN, product::scheme S> using way = product::way<ROWS, DOWN, S>;

int main()
{
    static const sizes all[] = {
        {1, 8, 8, 1}, {400, 264, 72, 1}, {390, 300, 330, 1}, {500, 2312, 24, 2}};
    bool right = true;
    unsigned seed = 1;
    for (const sizes &s : all) {
        right = test<way<192, false, product::TWO>>(s, seed++, twice{}) && right;
        right = test<way<192, true, product::OVER>>(s, seed++, minus{}) && right;
        right = test<way<192, true, product::TWO>>(s, seed++, twice{}) && right;
        right = test<way<192, false, product::OVER>>(s, seed++, minus{}) && right;
        right = test<way<128, true, product::TWO>>(s, seed++, twice{}) && right;
        right = test<way<192, false, product::GATE>>(s, seed++, gate{true}) && right;
        right = test<way<192, true, product::GATE>>(s, seed++, gate{true}) && right;
        right = test<way<192, false, product::GATE>>(s, seed++, gate{false}) && right;
        right = test<way<192, true, product::SLOPES>>(s, seed++, slopes{}) && right;
        right = test<way<192, false, product::SLOPES>>(s, seed++, slopes{}) && right;
        right = test<way<128, true, product::SLOPES>>(s, seed++, slopes{}) && right;
    }
    right = test_gradients<__nv_bfloat16>(100) && right;
    right = test_gradients<__half>(200) && right;
    puts(right ? "ok" : "failed");
    return right ? 0 : 1;
}
