/* ranks_table -- what a run over ranks held, sent and waited for, beside what theory says. */
#ifndef CLI_RANKS_TABLE_H
#define CLI_RANKS_TABLE_H
#include "cli/console.h"
#include "cli/json_out.h"
#include "train/trainer.h"

/* Bytes that rank 0 sends in a step by the formulas: (N-1)/N x Psi elements once for every gather
 * and every reduction of the whole model, without padding, tied weights and what stays gathered; in
 * a pipeline N are the copies and Psi is its stage's, with tensor parallelism its part of it. */
struct ranks_volume {
    double gather, reduce, pipe, tensor;
};
struct ranks_volume ranks_formula(const struct run_config *config,
                                  const struct trainer_summary *summary);
double ranks_hidden(const struct traffic *traffic);        /* share of communication; NAN: none */
double ranks_tensor_hidden(const struct traffic *traffic); /* ... only of TP groups */

/* "4 (mpi), stage 3, prefetch 1" */
void ranks_describe(const struct trainer_facts *facts, char *out, size_t bytes);
/* For runs with more than one rank that have done a step. */
void ranks_table_print(struct console *console, const struct run_config *config,
                       const struct trainer_summary *summary);
void ranks_table_json(struct json_out *json, const struct run_config *config,
                      const struct trainer_summary *summary);

#endif
