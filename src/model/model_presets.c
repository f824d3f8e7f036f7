/* model_presets -- the table behind model.preset. A size of 0 is set by the user or derived by
 * model_resolve: ff from the width, kv_heads from the heads, the vocabulary from the tokenizer. */
#include "model/model_presets.h"

/* clang-format off */
/*    name         arch   layers  width  heads  kv     ff  context   vocab  tied  theta */
#define PRESETS(X)                                                                        \
    X("none",      GPT2,       0,     0,     0,  0,     0,       0,      0,    2,      0) \
    X("tiny",      GPT2,       4,   128,     4,  0,     0,     128,      0,    1,      0) \
    X("gpt2-124m", GPT2,      12,   768,    12,  0,     0,    1024,  50257,    1,      0) \
    X("gpt2-350m", GPT2,      24,  1024,    16,  0,     0,    1024,  50257,    1,      0) \
    X("gpt2-774m", GPT2,      36,  1280,    20,  0,     0,    1024,  50257,    1,      0) \
    X("gpt2-1.5b", GPT2,      48,  1600,    25,  0,     0,    1024,  50257,    1,      0) \
    X("llama-1b",  LLAMA,     16,  2048,    32,  8,  5632,    2048,      0,    1,  10000) \
    X("llama-3b",  LLAMA,     28,  3072,    24,  8,  8192,    8192,      0,    1, 500000) \
    X("llama-8b",  LLAMA,     32,  4096,    32,  8, 14336,    8192, 128256,    0, 500000)
/* clang-format on */

#define ROW(word, kind, l, c, h, g, f, t, v, tie, theta) \
    {.name = word,                                       \
     .arch = MODEL_##kind,                               \
     .layers = l,                                        \
     .width = c,                                         \
     .heads = h,                                         \
     .kv_heads = g,                                      \
     .ff = f,                                            \
     .context = t,                                       \
     .vocab = v,                                         \
     .tied = tie,                                        \
     .rope_theta = theta},
#define NAME(word, ...) word,

const struct model_preset model_presets[] = {PRESETS(ROW)};
const int model_preset_count = sizeof model_presets / sizeof model_presets[0];
const char *const model_preset_names[] = {PRESETS(NAME) NULL};
