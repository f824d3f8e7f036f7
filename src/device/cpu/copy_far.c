/* copy_far -- see the header. */
#include "device/cpu/copy_far.h"
#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

enum { LINE = 64 };

static void copy_lines(char *dst, const char *src, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += LINE) {
        const __m128i *from = (const __m128i *)(const void *)(src + at);
        __m128i *to = (__m128i *)(void *)(dst + at);
        __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
        __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
        _mm_stream_si128(to, a);
        _mm_stream_si128(to + 1, b);
        _mm_stream_si128(to + 2, c);
        _mm_stream_si128(to + 3, d);
    }
    _mm_sfence(); /* such stores are not in order with others */
}

void copy_far(void *dst, const void *src, size_t bytes)
{
    size_t before = (LINE - (uintptr_t)dst % LINE) % LINE;
    if (bytes < before + LINE) {
        memcpy(dst, src, bytes);
        return;
    }
    size_t lines = (bytes - before) / LINE * LINE, done = before + lines;
    memcpy(dst, src, before);
    copy_lines((char *)dst + before, (const char *)src + before, lines);
    memcpy((char *)dst + done, (const char *)src + done, bytes - done);
}

#else

void copy_far(void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}

#endif
