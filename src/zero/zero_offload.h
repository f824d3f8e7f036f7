/* zero_offload -- state, sums and params in slower memory.
 */
#ifndef ZERO_ZERO_OFFLOAD_H
#define ZERO_ZERO_OFFLOAD_H
#include "zero/zero_impl.h"

/* --- zero_offload.c ------------------------------------------------------------------------- */
/* The kinds of far memory that this store has a use for: on a CPU, host memory is not far. */
void offload_choose(struct zero *zero);
/* Decide what is far, before anything is allocated. */
enum status offload_plan(struct zero *zero);
/* Far memory, and the slots that lead there. The exchange is open. */
enum status offload_create(struct zero *zero);
void offload_free(struct zero *zero);
/* A stream between far and device memory. One that waits for a stream with a thread of its own must
 * have one, too: the caller would wait in its place. */
enum status offload_create_stream(struct zero *zero, const char *name, struct stream **stream);
/* Memory for what this rank sends of far memory. */
enum status offload_create_sender(struct zero *zero);
/* The sums of the first piece that is not updated yet are final: fetch what the update needs. */
void offload_begin_update(struct zero *zero);
/* Enqueue the update of all packets of a piece. Pieces with packets come in their order. */
void offload_update_piece(struct zero *zero, int piece);
/* The far state of this piece and those after it is being saved: its updates wait. Any thread. */
void offload_hold(struct zero *zero, int first);
void offload_await_release(struct zero *zero, int piece);
/* Bytes of far memory for the sum of a range, and where they begin. */
size_t offload_sum_bytes(const struct zero *zero, struct piece_range range);
size_t offload_sum_at(const struct zero *zero, struct piece_range range);
/* Has a copy to or from far memory failed? */
enum status offload_check(struct zero *zero);
/* Wait until everything that was changed is in far memory. */
enum status offload_settle(struct zero *zero);
/* After offload_settle: the host may read and write far state; a write makes what was fetched
 * ahead invalid. */
enum status offload_read(struct zero *zero, int packet, size_t at, void *out, size_t bytes);
enum status offload_write(struct zero *zero, int packet, size_t at, const void *values,
                          size_t bytes);
/* Bring the masters or the moments of a packet to the device, moments with its part of the sum, for
 * what is enqueued up to offload_leave; -1: does nothing. Not during updates of pieces. */
void offload_visit(struct zero *zero, int packet, bool masters);
void offload_leave(struct zero *zero, int packet, bool masters);
/* The first elements of a range that are in one packet; *packet is -1, and they are all of the range,
 * if the piece is resident. */
struct piece_range offload_first(const struct zero *zero, struct piece_range range, int *packet);
/* The packet that holds an element of a piece; -1: the piece is resident. */
int offload_packet(const struct zero *zero, int piece, int64_t element);
/* Where the update of a packet finds its state; -1: of a resident piece. */
struct state_view offload_view(const struct zero *zero, int piece, int packet);
/* sum (+)= gradients, as add_gradients, of a piece whose sum is far. Enqueued on `stream`. */
void offload_add(struct zero *zero, struct stream *stream, struct piece_range range,
                 const void *gradients, int active, int64_t round);
/* Outside of a step, all of these wait. A range of masters, or of a sum, to host memory. */
enum status offload_read_masters(struct zero *zero, struct piece_range range, void *out);
enum status offload_read_sum(struct zero *zero, struct piece_range range, void *out);
/* The sum of a packet, to device memory; valid until the next call. */
enum status offload_fetch_sum(struct zero *zero, int packet, const void **sum);
/* The 16-bit params of a piece = its masters, rounded to nearest. */
enum status offload_publish(struct zero *zero, int piece);

/* --- zero_offload_params.c ------------------------------------------------------------------ */
void far_params_plan(struct zero *zero);
/* Far memory, and the stream that reads it. Does nothing where no params are far. */
enum status far_params_create(struct zero *zero);
void far_params_free(struct zero *zero);
/* Bytes of far memory for a range of this rank's shard of a piece, and where they begin. */
size_t far_params_bytes(const struct zero *zero, struct piece_range range);
size_t far_params_at(const struct zero *zero, struct piece_range range);
/* The params of a residency to its slot; slot_ready is recorded. Where params are far, all pieces
 * come this way. */
void far_params_gather(struct zero *zero, const struct residency *r);
/* Outside of a step: the host reads params, writes them, or rounds fp32 values to them. */
enum status far_params_read(struct zero *zero, struct piece_range range, void *out);
enum status far_params_put(struct zero *zero, struct piece_range range, const void *params);
enum status far_params_write(struct zero *zero, struct piece_range range, const float *values);
/* The params of a piece = its masters, rounded to nearest. */
enum status far_params_publish(struct zero *zero, int piece);

/* --- zero_offload_host.c -------------------------------------------------------------------- */
/* Decide whether the CPU updates far state: zero->config.offload.on_host. */
void host_plan(struct zero *zero);
/* Does the CPU update a packet? */
static inline bool host_updates(const struct zero *zero, int packet)
{
    return zero->config.offload.on_host &&
           zero->pieces[zero->packets[packet].range.piece].state_is_far;
}
/* The slots in host memory, and the stream. Nothing where the CPU updates no packet. */
enum status host_create(struct zero *zero);
/* Bytes of one of them: room for any packet that the CPU updates. */
size_t host_find_slot(struct zero *zero);
void host_free(struct zero *zero);
/* Take over the list of segments. */
void host_keep(struct zero *zero, struct update_segment *segments,
               struct update_location *locations);
/* The sums of this rank are final. */
void host_begin_update(struct zero *zero);
/* Start the update of a packet: when its slot's `fetched` is recorded, the new params are on the
 * device. The caller has waited for the packet that was in the slot before. */
void host_start(struct zero *zero, int packet);
/* Where the CPU finds the state of a packet. */
struct state_view host_view(const struct zero *zero, int packet);

#endif
