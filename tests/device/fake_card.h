/* fake_card -- what a library made of threads needs of a card made of threads. */
#ifndef TESTS_DEVICE_FAKE_CARD_H
#define TESTS_DEVICE_FAKE_CARD_H
#include <cuda_runtime_api.h>
#include "device/cuda/accumulate.h"

enum { FAKE_CARDS = 8 };

/* Run a function in the stream's order, on the stream's thread. */
void fake_card_call(cudaStream_t stream, void (*call)(void *arg), void *arg);
/* Where the bytes behind an address are. */
char *fake_card_bytes(const void *address);

#endif
