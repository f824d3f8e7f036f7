/* ranks_table -- memory, traffic and waiting time of a run over ranks, compared with formulas. */
#ifndef CLI_RANKS_TABLE_H
#define CLI_RANKS_TABLE_H
#include "cli/console.h"
#include "cli/json_out.h"
#include "train/trainer.h"

/* Bytes that rank 0 sends in a step according to the formulas: (N-1)/N x Psi elements for every
 * gather and every reduction of the whole model. Padding, tied weights and pieces that stay
 * gathered are not modelled. In a pipeline N is the number of copies and Psi counts the PP stage;
 * with tensor parallelism Psi counts this rank's part of it. */
struct ranks_volume {
    double gather, reduce, pipe, tensor;
};
struct ranks_volume ranks_formula(const struct run_config *config,
                                  const struct trainer_summary *summary);
/* The share of communication that overlapped with compute; NAN: there was none. The second function
 * counts only TP groups. */
double ranks_hidden(const struct traffic *traffic);
double ranks_tensor_hidden(const struct traffic *traffic);

/* "4 (mpi), stage 3, prefetch 1" */
void ranks_describe(const struct trainer_facts *facts, char *out, size_t bytes);
/* For runs with more than one rank that have done a step. */
void ranks_table_print(struct console *console, const struct run_config *config,
                       const struct trainer_summary *summary);
void ranks_table_json(struct json_out *json, const struct run_config *config,
                      const struct trainer_summary *summary);

#endif
