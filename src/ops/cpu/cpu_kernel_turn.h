/* cpu_kernel_turn -- turns four rows of four 32-bit words in registers: for packing. */
#ifndef OPS_CPU_CPU_KERNEL_TURN_H
#define OPS_CPU_CPU_KERNEL_TURN_H
#include <stdint.h>
#include <string.h>

typedef uint32_t turn_words __attribute__((vector_size(16)));

static inline __attribute__((always_inline)) turn_words turn_load(const void *from)
{
    turn_words v;
    memcpy(&v, from, sizeof v);
    return v;
}

/* to[n] = word n of a, b, c and d */
static inline __attribute__((always_inline)) void turn_four(const void *a_row, const void *b_row,
                                                            const void *c_row, const void *d_row,
                                                            turn_words *to)
{
    turn_words a = turn_load(a_row), b = turn_load(b_row), c = turn_load(c_row),
               d = turn_load(d_row);
    turn_words ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    turn_words cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    turn_words ef = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    turn_words gh = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    to[0] = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    to[1] = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    to[2] = __builtin_shufflevector(ef, gh, 0, 1, 4, 5);
    to[3] = __builtin_shufflevector(ef, gh, 2, 3, 6, 7);
}

#endif
