/* command_doctor -- reports on this machine and this build, and finds problems that would slow a
 * run.
 *
 * Facts are collected once and printed as lines or as one JSON object. Findings are problems with
 * their fix, the worst first.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <pcre2.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>
#include <xxhash.h>
#include <yaml.h>
#include "base/env.h"
#include "cli/command.h"
#include "cli/json_out.h"
#include "base/host.h"
#include "base/placement.h"
#include "base/threads.h"
#include "device/device.h"
#include "ops/ops.h"
#include "cli/launch/launch.h"
#include "cli/page/page.h"

struct doctor_settings {
    bool json;
};

enum { FINDINGS_MAX = 10, FINDING_BYTES = 256 };

/* Versions of the loaded libraries, as they report them. */
struct libraries {
    char jansson[32], yaml[32], pcre2[64], xxhash[32];
    bool pcre2_jit; /* without it the tokenizer is several times slower */
};

struct checkup {
    struct machine machine;
    struct threads_share share; /* of one rank */
    struct libraries libraries;
    struct ops_info ops;
    struct device_cuda_info cuda;
    struct mpi_launcher launcher;
    char no_launcher[MPI_LAUNCHER_WHY]; /* why mpirun cannot be used; "" = it can */
    int finding_count;
    char findings[FINDINGS_MAX][FINDING_BYTES];
};

static void libraries_look(struct libraries *libraries)
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

#if defined(__clang__)
static const char compiler[] = __VERSION__;
#else
static const char compiler[] = "GCC " __VERSION__;
#endif

static const char build_kind[] =
#if defined(SIFR_CHECKED)
    "checked"
#else
    "release"
#endif
#if defined(__SANITIZE_ADDRESS__)
    ", address sanitizer"
#endif
#if defined(__SANITIZE_THREAD__)
    ", thread sanitizer"
#endif
    ;

/* --- findings ------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void find(struct checkup *checkup, const char *format,
                                                       ...)
{
    va_list args;
    CHECK_LT(checkup->finding_count, FINDINGS_MAX);
    va_start(args, format);
    vsnprintf(checkup->findings[checkup->finding_count++], FINDING_BYTES, format, args);
    va_end(args);
}

/* An installed driver means that the user wants to use GPUs. */
static void examine_cuda(struct checkup *checkup)
{
    const struct device_cuda_info *cuda = &checkup->cuda;
    if (cuda->missing[0] && access("/proc/driver/nvidia/version", R_OK) == 0)
        find(checkup, "this machine has an NVIDIA driver, but this build has no CUDA support; "
                      "rebuild with CUDA");
    else if (cuda->driver > 0 && cuda->driver / 1000 < cuda->runtime / 1000)
        find(checkup,
             "the NVIDIA driver supports CUDA %d.%d, but this build needs %d.%d; update the driver",
             cuda->driver / 1000, cuda->driver / 10 % 100, cuda->runtime / 1000,
             cuda->runtime / 10 % 100);
    else if (cuda->driver > 0 && cuda->gpu_count == 0)
        find(checkup, "the NVIDIA driver finds no GPU; check CUDA_VISIBLE_DEVICES");
    else if (cuda->driver > 0 && !cuda->nvml)
        find(checkup, "libnvidia-ml.so.1 of the NVIDIA driver is missing: runs cannot report clock "
                      "and power of a GPU");
}

static void examine(struct checkup *checkup)
{
    const struct machine *m = &checkup->machine;
    char human[32];
    size_t free_bytes = m->memory_free_bytes;
    if (m->memory_limit_bytes && m->memory_limit_bytes < free_bytes)
        free_bytes = m->memory_limit_bytes;

    if (m->allowed < m->processors)
        find(checkup,
             "this process may use only %d of %d processors (mask %s); check taskset or the "
             "binding of the launcher",
             m->allowed, m->processors, m->mask);
    if (placement_openmp())
        find(checkup,
             "%s is set: OpenMP binds the threads of every rank, all ranks of a machine to the "
             "same cores, and run.bind does nothing; unset it",
             placement_openmp());
    if (free_bytes && free_bytes < (size_t)1 << 30)
        find(checkup,
             "only %s of memory is free; try a smaller train.micro_batch or engine.recompute=full",
             text_human_bytes(human, (double)free_bytes));
    if (m->disk_free_bytes < (size_t)1 << 30)
        find(checkup, "only %s is free on the disk of this folder; choose --out on another disk",
             text_human_bytes(human, (double)m->disk_free_bytes));
    if (!checkup->libraries.pcre2_jit)
        find(checkup, "PCRE2 was built without its JIT: tokenizing is about four times slower");
    if (build_kind[0] == 'c' || build_kind[sizeof "release" - 1])
        find(checkup, "this is a slow debug build (%s); use a release build for training",
             build_kind);
    if (checkup->launcher.named && checkup->no_launcher[0])
        find(checkup, "%s: `sifr train -n` cannot start ranks", checkup->no_launcher);
    examine_cuda(checkup);
}

/* --- output --------------------------------------------------------------------------------- */

static void fact(struct console *console, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void fact(struct console *console, const char *name, const char *format, ...)
{
    char value[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof value, format, args);
    va_end(args);
    console_line(console, "  %s%-10s%s %s", console_style(console, STYLE_DIM), name,
                 console_style(console, STYLE_PLAIN), value);
}

/* "9.14.0" for 91400, the numbering of cuBLAS, cuDNN and NCCL; "none" for 0. */
static const char *version_text(int version, char *out, size_t bytes)
{
    if (version > 0)
        snprintf(out, bytes, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    else
        snprintf(out, bytes, "none");
    return out;
}

static void print_cuda(struct console *console, const struct device_cuda_info *cuda)
{
    char a[32], b[32], c[32];
    if (cuda->missing[0]) {
        fact(console, "cuda", "%s", cuda->missing);
        return;
    }
    fact(console, "cuda", "built with %d.%d; cuBLASLt %s, cuDNN %s, NCCL %s", cuda->runtime / 1000,
         cuda->runtime / 10 % 100, version_text(cuda->cublas, a, sizeof a),
         version_text(cuda->cudnn, b, sizeof b), version_text(cuda->nccl, c, sizeof c));
    if (cuda->driver == 0)
        fact(console, "", "no NVIDIA driver");
    else
        fact(console, "", "driver%s%s supports CUDA %d.%d; %d GPU%s; NVML %s",
             cuda->release[0] ? " " : "", cuda->release, cuda->driver / 1000,
             cuda->driver / 10 % 100, cuda->gpu_count, cuda->gpu_count == 1 ? "" : "s",
             cuda->nvml ? "available" : "missing");
    for (int i = 0; i < cuda->gpu_count && i < DEVICE_GPUS; i++)
        fact(console, "", "GPU %d: %s, %s, capability %d.%d", i, cuda->gpus[i].name,
             text_human_bytes(a, (double)cuda->gpus[i].bytes), cuda->gpus[i].capability / 10,
             cuda->gpus[i].capability % 10);
}

/* How several ranks can be started, and how GPUs exchange data. */
static void print_ranks(struct console *console, const struct checkup *checkup)
{
    const struct mpi_launcher *launcher = &checkup->launcher;
    const struct device_cuda_info *cuda = &checkup->cuda;
    if (checkup->no_launcher[0])
        fact(console, "ranks", "threads of one process; not processes: %s", checkup->no_launcher);
    else
        fact(console, "ranks", "processes, started with %s (%s), or threads of one process",
             launcher->mpi, launcher->path);
    if (!cuda->missing[0])
        fact(console, "", "between GPUs: %sthrough host memory",
             cuda->nccl > 0 ? "NCCL with one GPU per rank, otherwise " : "");
}

/* Cores, and the processors of each NUMA node that this process may use. */
static void print_nodes(struct console *console)
{
    struct topology topology;
    cpu_set_t allowed, node;
    char list[128];
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return;
    topology_read("/sys", &allowed, &topology);
    fact(console, "cores", "%d%s; %d NUMA node%s", topology.core_count,
         topology.core_count < topology.count ? " with hyper-threads" : "", topology.node_count,
         topology.node_count == 1 ? "" : "s");
    for (int n = 0; n < topology.node_count && topology.node_count > 1; n++) {
        CPU_ZERO(&node);
        for (int i = 0; i < topology.count; i++)
            if (topology.cpus[i].node == n)
                CPU_SET((size_t)topology.cpus[i].cpu, &node);
        topology_print(&node, list, sizeof list);
        fact(console, "", "node %d: processors %s", topology.nodes[n], list);
    }
}

static void print_facts(struct console *console, const struct checkup *checkup)
{
    const struct machine *m = &checkup->machine;
    const struct threads_share *share = &checkup->share;
    const struct ops_info *ops = &checkup->ops;
    const struct libraries *l = &checkup->libraries;
    char a[32], b[32];
    fact(console, "sifr", "%s, %s build, %s", SIFR_VERSION, build_kind, compiler);
    fact(console, "back ends", "device cpu%s; ops cpu%s, ref",
         checkup->cuda.missing[0] ? "" : ", cuda", checkup->cuda.missing[0] ? "" : ", cuda");
    fact(console, "cpu", "%s, %s vectors", m->cpu[0] ? m->cpu : ops->core, ops->vectors);
    fact(console, "threads", "%d (%s), OpenMP %d", share->count, share->why, ops->openmp);
    fact(console, "", "%d of %d processors, mask %s", m->allowed, m->processors, m->mask);
    if (m->quota > 0)
        fact(console, "", "limited to %.4g processors by the container", m->quota);
    print_nodes(console);
    fact(console, "kernels", "%s (run.kernels)", ops->kernels);
    fact(console, "products", "fp32 by %s; bf16 %s%s", ops->products,
         ops->bf16_products[0] ? "by " : "",
         ops->bf16_products[0] ? ops->bf16_products
                               : "as fp32: the CPU has no instructions for it");
    if (ops->note[0])
        fact(console, "", "%s", ops->note);
    fact(console, "blas", "%s", ops->blas);
    fact(console, "", "%s flavour, limited to one thread within a parallel region", ops->flavour);
    fact(console, "memory", "%s free of %s", text_human_bytes(a, (double)m->memory_free_bytes),
         text_human_bytes(b, (double)m->memory_bytes));
    if (m->memory_limit_bytes)
        fact(console, "", "limited to %s by the container",
             text_human_bytes(a, (double)m->memory_limit_bytes));
    fact(console, "disk", "%s free in this folder, /dev/shm %s",
         text_human_bytes(a, (double)m->disk_free_bytes),
         text_human_bytes(b, (double)m->shm_bytes));
    print_cuda(console, &checkup->cuda);
    print_ranks(console, checkup);
    fact(console, "libraries", "jansson %s, libyaml %s, xxhash %s", l->jansson, l->yaml, l->xxhash);
    fact(console, "", "PCRE2 %s, %s JIT", l->pcre2, l->pcre2_jit ? "with" : "without");
    fact(console, "page", "server: %s", page_library());
}

static void add_cuda(struct json_out *json, const struct device_cuda_info *cuda)
{
    json_out_open(json, "cuda", '{');
    json_out_string(json, "missing", cuda->missing);
    json_out_int(json, "driver", cuda->driver);
    json_out_int(json, "runtime", cuda->runtime);
    json_out_int(json, "cublas", cuda->cublas);
    json_out_int(json, "cudnn", cuda->cudnn);
    json_out_int(json, "nccl", cuda->nccl);
    json_out_bool(json, "nvml", cuda->nvml);
    json_out_string(json, "release", cuda->release);
    json_out_open(json, "gpus", '[');
    for (int i = 0; i < cuda->gpu_count && i < DEVICE_GPUS; i++) {
        json_out_open(json, NULL, '{');
        json_out_string(json, "name", cuda->gpus[i].name);
        json_out_int(json, "bytes", (int64_t)cuda->gpus[i].bytes);
        json_out_int(json, "capability", cuda->gpus[i].capability);
        json_out_close(json, '}');
    }
    json_out_close(json, ']');
    json_out_close(json, '}');
}

static enum status print_json(struct cli *cli, const struct checkup *checkup)
{
    const struct machine *m = &checkup->machine;
    const struct libraries *l = &checkup->libraries;
    struct json_out json;
    json_out_begin(&json, cli->env);
    json_out_string(&json, "version", SIFR_VERSION);
    json_out_string(&json, "build", build_kind);
    json_out_string(&json, "compiler", compiler);
    json_out_string(&json, "cpu", m->cpu[0] ? m->cpu : checkup->ops.core);
    json_out_string(&json, "kernels", checkup->ops.kernels);
    json_out_string(&json, "vectors", checkup->ops.vectors);
    json_out_int(&json, "processors", m->processors);
    json_out_int(&json, "allowed", m->allowed);
    json_out_int(&json, "threads", checkup->share.count);
    json_out_string(&json, "threads_why", checkup->share.why);
    json_out_string(&json, "mask", m->mask);
    json_out_int(&json, "cores", m->cores);
    json_out_string(&json, "numa_nodes", m->node_list);
    json_out_real(&json, "cpu_quota", m->quota);
    json_out_int(&json, "openmp", checkup->ops.openmp);
    json_out_open(&json, "blas", '{');
    json_out_string(&json, "version", checkup->ops.blas);
    json_out_string(&json, "core", checkup->ops.core);
    json_out_string(&json, "flavour", checkup->ops.flavour);
    json_out_close(&json, '}');
    json_out_open(&json, "libraries", '{');
    json_out_string(&json, "jansson", l->jansson);
    json_out_string(&json, "yaml", l->yaml);
    json_out_string(&json, "pcre2", l->pcre2);
    json_out_bool(&json, "pcre2_jit", l->pcre2_jit);
    json_out_string(&json, "xxhash", l->xxhash);
    json_out_string(&json, "page", page_library());
    json_out_close(&json, '}');
    json_out_int(&json, "memory_bytes", (int64_t)m->memory_bytes);
    json_out_int(&json, "memory_free_bytes", (int64_t)m->memory_free_bytes);
    json_out_int(&json, "memory_limit_bytes", (int64_t)m->memory_limit_bytes);
    json_out_int(&json, "disk_free_bytes", (int64_t)m->disk_free_bytes);
    json_out_int(&json, "shm_bytes", (int64_t)m->shm_bytes);
    json_out_string(&json, "mpi", checkup->launcher.mpi);
    json_out_string(&json, "launcher", checkup->no_launcher[0] ? "" : checkup->launcher.path);
    add_cuda(&json, &checkup->cuda);
    json_out_open(&json, "findings", '[');
    for (int i = 0; i < checkup->finding_count; i++)
        json_out_string(&json, NULL, checkup->findings[i]);
    json_out_close(&json, ']');
    return json_out_print(&json, cli->console);
}

static enum status run_doctor(struct cli *cli, struct options *options, void *settings,
                              const char *const *words, int word_count)
{
    (void)options, (void)words, (void)word_count;
    const struct doctor_settings *doctor = settings;
    struct checkup checkup = {0};
    machine_look(&checkup.machine);
    checkup.share = threads_default(1, true);
    libraries_look(&checkup.libraries);
    ops_cpu_info(&checkup.ops);
    device_cuda_info(&checkup.cuda);
    mpi_launcher_look(&checkup.launcher, checkup.no_launcher, sizeof checkup.no_launcher);
    examine(&checkup);
    if (doctor->json)
        return print_json(cli, &checkup);
    print_facts(cli->console, &checkup);
    console_line(cli->console, "%s", "");
    for (int i = 0; i < checkup.finding_count; i++)
        console_line(cli->console, "%s!%s %s", console_style(cli->console, STYLE_YELLOW),
                     console_style(cli->console, STYLE_PLAIN), checkup.findings[i]);
    if (checkup.finding_count == 0)
        console_line(cli->console, "no problems found");
    return STATUS_OK;
}

/* --- the command ---------------------------------------------------------------------------- */

static const struct option doctor_list[] = {
    {COMMAND_FLAG("json", doctor_settings, json, BOOL), .help = "print one JSON object"},
};

const struct command command_doctor = {
    .name = "doctor",
    .usage = "[--json]",
    .summary = "check this machine and this build for problems that would slow a run",
    .description =
        "Prints versions, processors and affinity mask, threads, BLAS flavour, GPUs, memory, disk, "
        "back ends, and how several ranks can be started; then the problems it found, with their "
        "fix.\n",
    .examples = "  sifr doctor\n"
                "  sifr doctor --json | jq .blas\n",
    .settings_bytes = sizeof(struct doctor_settings),
    .flags = COMMAND_FLAGS("output", doctor_list),
    .run = run_doctor,
};
