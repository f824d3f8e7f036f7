#define PCRE2_CODE_UNIT_WIDTH 8
#include "cli/doctor/libraries.h"
#include <jansson.h>
#include <pcre2.h>
#include <stdint.h>
#include <stdio.h>
#include <xxhash.h>
#include <yaml.h>

void libraries_look(struct libraries *libraries)
{
    *libraries = (struct libraries){0};
    snprintf(libraries->jansson, sizeof libraries->jansson, "%s", jansson_version_str());
    snprintf(libraries->yaml, sizeof libraries->yaml, "%s", yaml_get_version_string());
    unsigned xxhash = XXH_versionNumber();
    snprintf(libraries->xxhash, sizeof libraries->xxhash, "%u.%u.%u", xxhash / 10000,
             xxhash / 100 % 100, xxhash % 100);
    if (pcre2_config(PCRE2_CONFIG_VERSION, NULL) <= (int)sizeof libraries->pcre2)
        pcre2_config(PCRE2_CONFIG_VERSION, libraries->pcre2);
    uint32_t jit = 0;
    libraries->pcre2_jit = pcre2_config(PCRE2_CONFIG_JIT, &jit) >= 0 && jit == 1;
}
