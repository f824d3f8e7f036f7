/* gpu_timeline -- a library that CUDA loads into a program (CUDA_INJECTION64_PATH). It logs when
 * each kernel, copy and fill of the GPU began and ended, in the running program and at the GPU's
 * own clock, unlike a profiler that replays kernels one by one.
 *
 * TIMELINE=PATH names the file, which has a line "BEGIN,END,NAME" for each, in nanoseconds. Used by
 * bench/gpu-timeline.
 */
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUFFER = 8 << 20 };

static FILE *out;

static void write_span(uint64_t begin, uint64_t end, const char *name)
{
    fprintf(out, "%llu,%llu,%s\n", (unsigned long long)begin, (unsigned long long)end, name);
}

static void write_record(const CUpti_Activity *record)
{
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const CUpti_ActivityKernel10 *k = (const void *)record;
        write_span(k->start, k->end, k->name);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const CUpti_ActivityMemcpy6 *k = (const void *)record;
        write_span(k->start, k->end, "copy");
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const CUpti_ActivityMemset4 *k = (const void *)record;
        write_span(k->start, k->end, "fill");
    }
}

static void CUPTIAPI take_buffer(uint8_t **buffer, size_t *bytes, size_t *most)
{
    *buffer = aligned_alloc(8, BUFFER);
    *bytes = *buffer ? BUFFER : 0;
    *most = 0;
}

static void CUPTIAPI give_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes,
                                 size_t valid)
{
    CUpti_Activity *record = NULL;
    (void)context, (void)stream, (void)bytes;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS)
        write_record(record);
    free(buffer);
}

static void finish(void)
{
    cuptiActivityFlushAll(1);
    fclose(out);
}

int InitializeInjection(void);
int InitializeInjection(void)
{
    const char *path = getenv("TIMELINE");
    out = fopen(path ? path : "timeline.csv", "wx");
    if (!out)
        return 0;
    cuptiActivityRegisterCallbacks(take_buffer, give_buffer);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET);
    atexit(finish);
    return 1;
}
