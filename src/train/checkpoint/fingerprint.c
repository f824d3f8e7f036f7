/* fingerprint -- hashes the program and describes the machine. */
#include "train/checkpoint/fingerprint.h"
#include <stdio.h>
#include <string.h>
#include <xxhash.h>
#include "base/file.h"
#include "ops/ops.h"

enum status fingerprint_binary(struct env *env, uint64_t *print)
{
    static const char program[] = "/proc/self/exe";
    struct file_map map;
    *print = XXH3_64bits(SIFR_VERSION, sizeof SIFR_VERSION);
    if (!file_exists(program))
        return STATUS_OK;
    TRY(file_map_open(env, program, &map));
    *print = XXH3_64bits_withSeed(map.data, map.bytes, *print);
    enum status st = file_map_check(env, program, map.data);
    file_map_close(&map);
    return st;
}

void fingerprint_cpu(char *text, size_t bytes)
{
    struct ops_info info;
    ops_cpu_info(&info);
    snprintf(text, bytes, "%s, %s, products %s%s%s", info.core, info.vectors, info.products,
             info.bf16_products[0] ? ", bf16 " : "", info.bf16_products);
}

enum status fingerprint_take(struct env *env, const char *device, const char *gpu,
                             struct fingerprint *print)
{
    struct ops_info info;
    ops_cpu_info(&info);
    *print = (struct fingerprint){0};
    fingerprint_cpu(print->cpu, sizeof print->cpu);
    snprintf(print->blas, sizeof print->blas, "%s", info.blas);
    snprintf(print->device, sizeof print->device, "%s%s%s", device, *gpu ? ", " : "", gpu);
    return fingerprint_binary(env, &print->binary);
}

static void compare_words(const char *what, const char *there, const char *here, struct text *text)
{
    if (strcmp(there, here) != 0)
        text_printf(text, "%s%s: '%s' -> '%s'", text->bytes ? "; " : "", what, there, here);
}

void fingerprint_compare(const struct fingerprint *there, const struct fingerprint *here,
                         struct text *text)
{
    compare_words("cpu", there->cpu, here->cpu, text);
    compare_words("BLAS", there->blas, here->blas, text);
    compare_words("device", there->device, here->device, text);
    if (there->binary != here->binary)
        text_printf(text, "%sanother build of sifr", text->bytes ? "; " : "");
}
