/* bench -- the parts of `sifr bench`. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H
#include "cli/command.h"
#include "cli/json_out.h"
#include "cli/launch/ranks.h"
#include "engine/engine.h"
#include "plan/machine.h"
#include "plan/plan.h"
#include "train/config/config.h"
#include "train/run/footprint.h"
#include "train/session.h"

/* --- bench_step.c ----------------------------------------------------------------------------- */

/* The time of one training step of a model on random tokens. */

struct bench_step_config {
    struct model_config model; /* resolved, with a vocabulary */
    struct engine_config engine;
    struct compute_config place;
    struct zero_config store;
    int64_t warmup, steps; /* untimed and timed steps */
};

struct bench_step_result {
    int64_t parameters;
    double flops_per_token;
    double seconds; /* median of the steps */
    double tokens_per_second, gflops;
    struct mem_sums held;        /* peak of the accounted memory of the device */
    struct footprint gpu;        /* after the last step; all zero = no GPU */
    struct device_gauges gauges; /* of the GPU, after the last step */
    double fastest, slowest;     /* seconds */
    double loss;                 /* of the last step */
};

enum status bench_step_run(struct env *env, const struct bench_step_config *config,
                           struct bench_step_result *result);

/* --- bench_ranks.c ---------------------------------------------------------------------------- */

/* A measurement on several ranks at once. Ranks are threads, processes started here,
 * or processes started by a launcher. */

struct bench_ranks {
    const char *backend; /* comm.backend */
    double timeout;
    int bind, device; /* run.bind, run.device */
    bool quiet;       /* print no line about the launch */
    struct ranks_plan plan;
};

/* Choose the ranks from -n (0 = not given), and set env->threads to the threads of a rank, or to
 * `threads` if it is not 0. */
enum status bench_ranks_find(struct cli *cli, int64_t n, int64_t threads,
                             struct bench_ranks *ranks);
/* Choose the device. Called once in every process with ranks, before they join. */
typedef enum status bench_prepare_fn(void *user, struct compute_config *place);
/* The work of a rank that has joined the others (session->comm; NULL = it is the only one) and has
 * its device, ops and stream. */
typedef enum status bench_work_fn(void *user, struct session *session);
enum status bench_ranks_run(struct cli *cli, const struct bench_ranks *ranks,
                            bench_prepare_fn *prepare, bench_work_fn *work, void *user);

/* --- bench_calls.c ---------------------------------------------------------------------------- */

/* Ops timed on all ranks at once, and the prices of ops_price.h fitted to them.
 *
 * Ranks of one machine compete for its memory, so all of them make each call at the same time, with
 * the threads that each would have in a run. With the configuration of a run, the calls are exactly
 * those of its step.
 */

struct bench_calls {
    const struct plan_request *request; /* NULL = the calls of a typical step */
    double seconds;                     /* time for each call */
    const char *folder;                 /* where the disk is measured: offload.folder */
};

struct bench_calls_line {
    struct ops_measured measured; /* seconds: the median over the ranks */
    double flops, bytes;
};

struct bench_calls_result {
    struct bench_calls_line *lines;
    int count;
    struct ops_rate rates[OPS_KIND_COUNT];
    double errors[OPS_KIND_COUNT]; /* of the worst call: 1.2 = off by 20 % */
    double copy_bytes_per_second;
    struct machine_offload offload;
};

/* Collective over the ranks of the session (comm NULL = a single rank). All ranks get the same
 * result and free it with bench_calls_free. */
enum status bench_calls_run(struct session *session, const struct bench_calls *config,
                            struct bench_calls_result *result);
void bench_calls_free(struct env *env, struct bench_calls_result *result);
/* Fill the ops half of a profile. The caller frees the profile. */
enum status bench_calls_profile(struct env *env, const struct bench_calls_result *result,
                                struct machine_profile *profile);

void bench_calls_table(struct console *console, const struct bench_calls_result *result);
void bench_calls_json(struct json_out *json, const struct bench_calls_result *result);

/* Replace *value by the median over all ranks. Collective. */
enum status bench_median(struct session *session, double *value);

/* --- bench_offload.c -------------------------------------------------------------------------- */

/* The rates of what offload uses: the link between host and GPU, a file in `folder`, and AdamW on
 * the cores of a rank with a GPU, for about `seconds`. Collective: all ranks measure at the same
 * time and get the same result. */
enum status bench_offload_run(struct session *session, const char *folder, double seconds,
                              struct machine_offload *rates);

/* --- bench_comm.c ----------------------------------------------------------------------------- */

/* The speed of communication: every kind of call, from the size of a vote to the size
 * of a gradient, and the prices of comm_price.h fitted to them.
 *
 * Each call is compared with a plain copy of as many bytes, made on all ranks at once in the same
 * run: the upper bound that memory sets.
 */

struct bench_comm_config {
    int64_t largest; /* most bytes that a rank sends in a call */
    double seconds;  /* time for each kind and size */
    int64_t node;    /* ranks per node; 0 = a node is a host */
};

enum { BENCH_COMM_SIZES = 16, BENCH_COMM_KINDS = 6 };

struct bench_comm_line {
    const char *what; /* "all_gather" */
    bool between;     /* between nodes; otherwise within a node */
    int messages;     /* number of ranks that a rank sends to */
    double bytes;     /* sent by a rank */
    double seconds;   /* median over calls, of the slowest rank */
    double copy_rate; /* bytes per second of a plain copy of as many bytes; 0 = not measured */
};

struct bench_comm_result {
    struct bench_comm_line lines[2 * BENCH_COMM_KINDS * BENCH_COMM_SIZES + 1];
    int count;
    struct comm_prices prices;
    double inside_error, between_error; /* of the worst fitted call: 1.2 = off by 20 % */
    int ranks, node;
};

/* Collective over the ranks of the session, at least two. All ranks get the same result. */
enum status bench_comm_run(struct session *session, const struct bench_comm_config *config,
                           struct bench_comm_result *result);

void bench_comm_table(struct console *console, const struct bench_comm_result *result);
void bench_comm_json(struct json_out *json, const struct bench_comm_result *result);

/* --- bench_machine.c -------------------------------------------------------------------------- */

/* `sifr bench comm`, and `sifr bench ops` for a machine profile: measures on all
 * ranks, prints the results, and saves its half of the profile. */

struct bench_machine {
    struct run_config *config; /* bound, not resolved */
    bool comm;                 /* bench comm; otherwise bench ops */
    bool configured;           /* ops: the calls of `config`; otherwise those of a typical step */
    int device;                /* enum run_device, unless the configuration sets one */
    int64_t n, threads;        /* 0 = not given */
    double seconds;            /* time for each call; 0 = not given */
    struct bench_comm_config calls;
    const char *save; /* file of the profile; "" = do not save */
    bool json;
};

enum status bench_machine_run(struct cli *cli, struct options *options,
                              const struct bench_machine *order);

#endif
