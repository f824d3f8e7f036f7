/* Any bytes as a checkpoint's state.json: they are refused, or every name stays inside the folder,
 * the chunks cover their files, and the printed state parses again. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "train/checkpoint/checkpoint_state.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void ignore_line(void *user, enum log_level level, const char *line)
{
    (void)user, (void)level, (void)line;
}

static void check_entry(const struct checkpoint_entry *entry)
{
    uint64_t next = 0;
    CHECK(*entry->name && *entry->name != '/' && strstr(entry->name, "..") == NULL);
    for (int64_t i = 0; i < entry->chunk_count; i++) {
        CHECK(entry->chunks[i].begin == next && entry->chunks[i].bytes > 0);
        CHECK(entry->chunks[i].bytes <= CHECKPOINT_CHUNK);
        next += entry->chunks[i].bytes;
    }
    CHECK(next == entry->bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct env env;
    struct checkpoint_state state, again;
    struct text text;
    if (env_create(&env, ignore_line, NULL, LOG_ERROR, 1) != STATUS_OK)
        return 0;
    text_init(&text, &env);
    if (checkpoint_state_parse(&env, (const char *)data, bytes, "input", &state) == STATUS_OK) {
        for (int i = 0; i < state.entry_count; i++)
            check_entry(&state.entries[i]);
        checkpoint_state_print(&state, &text);
        CHECK_EQ(checkpoint_state_parse(&env, text.data, text.bytes, "printed", &again), STATUS_OK);
        CHECK_EQ(again.entry_count, state.entry_count);
        checkpoint_state_free(&again);
        checkpoint_state_free(&state);
    }
    text_free(&text);
    env_destroy(&env);
    return 0;
}
