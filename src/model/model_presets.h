/* model_presets -- named sets of sizes. Keys that the user sets override them. */
#ifndef MODEL_MODEL_PRESETS_H
#define MODEL_MODEL_PRESETS_H
#include "model/model.h"

struct model_preset {
    const char *name;
    int arch; /* enum model_arch */
    int64_t layers, width, heads, kv_heads, ff, context;
    int64_t vocab; /* 0: from the tokenizer */
    int tied;
    double rope_theta;
};

extern const struct model_preset model_presets[]; /* [0] is "none": all sizes 0 */
extern const int model_preset_count;
extern const char *const model_preset_names[]; /* the same order; NULL-terminated */

#endif
