/* libraries -- the versions of the libraries that are really loaded, asked of themselves. */
#ifndef CLI_LIBRARIES_H
#define CLI_LIBRARIES_H
#include <stdbool.h>

struct libraries {
    char jansson[32], yaml[32], pcre2[64], xxhash[32];
    bool pcre2_jit; /* the tokenizer is several times slower without */
};

void libraries_look(struct libraries *libraries);

#endif
