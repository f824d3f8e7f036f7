/* fingerprint -- what the bits of a run depend on besides its configuration: the program, the kind
 * of CPU, the BLAS library and the device. Every checkpoint has it; a run that is resumed elsewhere
 * reports the differences. */
#ifndef TRAIN_FINGERPRINT_H
#define TRAIN_FINGERPRINT_H
#include "base/text.h"

enum { FINGERPRINT_WORDS = 192 };

struct fingerprint {
    uint64_t binary; /* XXH3 of the executable and the version */
    char cpu[FINGERPRINT_WORDS], blas[FINGERPRINT_WORDS], device[FINGERPRINT_WORDS];
};

/* Hashes the executable and the version; only the version where the system does not expose the
 * executable (/proc/self/exe). Fails if the file cannot be read. */
enum status fingerprint_binary(struct env *env, uint64_t *print);
/* What decides the bits of a CPU's products and loops: "NEOVERSEV1, NEON, products NEON, bf16
 * bfmmla" */
void fingerprint_cpu(char *text, size_t bytes);
/* `device` is the back end, `gpu` its name ("" = the host's processors). */
enum status fingerprint_take(struct env *env, const char *device, const char *gpu,
                             struct fingerprint *print);
/* Describe the differences: "cpu: 'NEOVERSEV1' -> 'ZEN'; another build of sifr"; "" = none. */
void fingerprint_compare(const struct fingerprint *there, const struct fingerprint *here,
                         struct text *text);

#endif
