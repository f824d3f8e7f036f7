/* test_hopper_product -- products of hopper_product.cuh on the host: no GPU is needed. Whole clusters
 * run on fake instructions (fake_hopper.h), with loads, turns and buffers in orders that a seed draws.
 * The test checks every element of the results, and that no thread waits for ever. Elements are small
 * integers, so that sums are exact. */
#include "ops/fake_hopper.h"
#include "ops/cuda/product/hopper_product.cuh"

using namespace hopper;
typedef __nv_bfloat16 number;

/* Two results: the sum plus its column's number, and its double. */
struct twice {
    enum { READS = 0 };
    int column;
    void fetch(const product::job &j, int h)
    {
        column = j.column + 64 * h + (int)threadIdx.x % 4 * 2;
    }
    void of(int sixteen, const float *sums, uint32_t (&out)[4], uint32_t (&out2)[4])
    {
        for (int i = 0; i < 4; i++) {
            const int at = (column + 16 * sixteen + i / 2 * 8) % 7;
            const float a = sums[2 * i] + (float)at, b = sums[2 * i + 1] + (float)((at + 1) % 7);
            out[i] = packed<number>(a, b);
            out2[i] = packed<number>(2 * a, 2 * b);
        }
    }
};

/* One result, which replaces what is read: the sum minus it. */
struct minus {
    enum { READS = 1 };
    void fetch(const product::job &, int) {}
    void of(int, const float *sums, uint32_t (&word)[4], uint32_t (&)[4])
    {
        for (int i = 0; i < 4; i++) {
            const float2 x = unpacked<number>(word[i]);
            word[i] = packed<number>(sums[2 * i] - x.x, sums[2 * i + 1] - x.y);
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

template <class W, class E> static bool test(const sizes &s, unsigned seed)
{
    std::mt19937 draw(seed);
    const int64_t count = (int64_t)s.rows * s.columns;
    auto a = numbers((int64_t)s.rows * s.depth, 1, draw);
    auto b = numbers((int64_t)s.columns * s.depth, 1, draw);
    auto other = numbers(count, 9, draw);
    const auto read = other;
    std::vector<uint16_t> out((size_t)count, 0x7fc0);
    const CUtensorMap map_a = fake::map_of(a.data(), s.rows, s.depth, W::ROWS / 2);
    const CUtensorMap map_b = W::DOWN
                                  ? fake::map_of(b.data(), s.depth, s.columns, product::DEPTH)
                                  : fake::map_of(b.data(), s.columns, s.depth, product::COLUMNS);
    const CUtensorMap map_out = fake::map_of(out.data(), s.rows, s.columns, product::STRIP);
    const CUtensorMap map_other = fake::map_of(other.data(), s.rows, s.columns,
                                               E::READS ? (int)W::ROWS : (int)product::STRIP);
    const product::problem p = product::problem_of<W>(s.rows, s.columns, s.depth);
    std::vector<int> threads = {0, 32}; /* the others that load do nothing */
    for (int t = 128; t < product::THREADS; t++)
        threads.push_back(t);
    bool right =
        fake::run(2 * s.clusters, threads, sizeof(product::memory<W>), seed, [&](char *raw) {
            product::run_block<W, number>(*reinterpret_cast<product::memory<W> *>(raw), p, &map_a,
                                          &map_b, &map_out, &map_other, E{});
        });
    if (!right)
        fprintf(stderr, "threads wait for ever, or results were not stored\n");
    for (int64_t r = 0; right && r < s.rows; r++)
        for (int64_t c = 0; right && c < s.columns; c++) {
            float sum = 0;
            for (int64_t k = 0; k < s.depth; k++)
                sum += fake::value(a[(size_t)(r * s.depth + k)]) *
                       fake::value(b[(size_t)(W::DOWN ? k * s.columns + c : c * s.depth + k)]);
            const size_t at = (size_t)(r * s.columns + c);
            if (E::READS) {
                right =
                    out[at] == fake::rounded(sum - fake::value(read[at])) && other[at] == read[at];
            } else {
                const float first = sum + (float)(c % 7);
                right = out[at] == fake::rounded(first) && other[at] == fake::rounded(2 * first);
            }
            if (!right)
                fprintf(stderr, "row %d, column %d is wrong: %g\n", (int)r, (int)c,
                        (double)fake::value(out[at]));
        }
    if (!right)
        fprintf(stderr, "%d x %d over %d, %d clusters, tiles of %d, seed %u\n", s.rows, s.columns,
                s.depth, s.clusters, (int)W::ROWS, seed);
    return right;
}

int main()
{
    static const sizes all[] = {
        {1, 8, 8, 1}, {400, 264, 72, 1}, {390, 300, 330, 1}, {500, 2312, 24, 2}};
    bool right = true;
    unsigned seed = 1;
    for (const sizes &s : all) {
        right = test<product::way<192, false>, twice>(s, seed++) && right;
        right = test<product::way<192, true>, minus>(s, seed++) && right;
        right = test<product::way<192, true>, twice>(s, seed++) && right;
        right = test<product::way<192, false>, minus>(s, seed++) && right;
        right = test<product::way<128, true>, twice>(s, seed++) && right;
    }
    puts(right ? "ok" : "failed");
    return right ? 0 : 1;
}
