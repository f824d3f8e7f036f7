/* libraries -- versions of the loaded libraries, as they report them. */
#ifndef CLI_LIBRARIES_H
#define CLI_LIBRARIES_H
#include <stdbool.h>

struct libraries {
    char jansson[32], yaml[32], pcre2[64], xxhash[32];
    bool pcre2_jit; /* without it the tokenizer is several times slower */
};

void libraries_look(struct libraries *libraries);

#endif
