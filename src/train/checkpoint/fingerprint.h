/* fingerprint -- what the bits of a run depend on beside its configuration: the program, the CPU
 * kind, the BLAS library and the device. Kept in every checkpoint; a run that goes on elsewhere is
 * told what differs. */
#ifndef TRAIN_FINGERPRINT_H
#define TRAIN_FINGERPRINT_H
#include "base/text.h"

enum { FINGERPRINT_WORDS = 192 };

struct fingerprint {
    uint64_t binary; /* XXH3 of the program's file and version */
    char cpu[FINGERPRINT_WORDS], blas[FINGERPRINT_WORDS], device[FINGERPRINT_WORDS];
};

/* An error where the file cannot be read; of the version alone where the system does not show it. */
enum status fingerprint_binary(struct env *env, uint64_t *print);
/* `device` is the back end, `gpu` its name ("" = the host's processors). */
enum status fingerprint_take(struct env *env, const char *device, const char *gpu,
                             struct fingerprint *print);
/* What differs, in words: "cpu NEOVERSEV1 there, ZEN here; another program"; "" = nothing. */
void fingerprint_compare(const struct fingerprint *there, const struct fingerprint *here,
                         struct text *text);

#endif
