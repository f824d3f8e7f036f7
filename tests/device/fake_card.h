/* fake_card -- what a library made of threads needs of a card made of threads. */
#ifndef TESTS_DEVICE_FAKE_CARD_H
#define TESTS_DEVICE_FAKE_CARD_H
#include <cuda_runtime_api.h>
#include "device/cuda/accumulate.h"

enum { FAKE_CARDS = 16 };

/* Of a card: all of it, what the first to use it takes for a context, and what others hold, of
 * which only the management library knows. */
#define FAKE_CARD_BYTES    ((size_t)16 << 30)
#define FAKE_CONTEXT_BYTES ((size_t)64 << 20)
#define FAKE_OTHERS_BYTES  ((size_t)300 << 20)

/* Run a function in the stream's order, on the stream's thread. */
void fake_card_call(cudaStream_t stream, void (*call)(void *arg), void *arg);
/* Where the bytes behind an address are. */
char *fake_card_bytes(const void *address);
/* What this process has in use of a card. */
__attribute__((visibility("default"))) size_t fake_card_in_use(int index);

#endif
