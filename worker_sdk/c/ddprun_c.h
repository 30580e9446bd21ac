/* SPDX-License-Identifier: Apache-2.0 */
/* ddprun's worker SDK for C, and for whatever can call C: libddprun_c.so. It has a worker's place
 * in the job, its progress, the round's store, and the host communicator. No LibTorch, CUDA or NCCL
 * is needed.
 *
 * Functions return a ddprun_status. If it is not DDPRUN_OK, the calling thread's
 * ddprun_error_text() says what happened. Outputs are written only if the status is DDPRUN_OK.
 * Objects are made by functions that end in _create, _connect or _split, and must be destroyed;
 * destroying NULL does nothing. An object is used by one thread at a time, unless it says
 * otherwise. Symbols have versions: a later library runs programs that were linked with an earlier
 * one. */
#ifndef DDPRUN_C_H
#define DDPRUN_C_H

#include <stddef.h>
#include <stdint.h>

#define DDPRUN_C_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ddprun_status {
  DDPRUN_OK = 0,
  DDPRUN_INVALID_ARGUMENT = 1, /* correct it and call again */
  DDPRUN_TIMEOUT = 2,          /* names the ranks that did not come, if known */
  DDPRUN_UNAVAILABLE = 3,      /* a peer can't be reached */
  DDPRUN_CONNECTION_LOST = 4,
  DDPRUN_PROTOCOL = 5,  /* ranks made different calls, or a peer is of another version */
  DDPRUN_PEER_LOST = 6, /* names the rank that died, aborted or gave up */
  DDPRUN_ABORTED = 7,
  DDPRUN_RESOURCE_EXHAUSTED = 8,
  DDPRUN_UNSUPPORTED = 9,
  DDPRUN_SYSTEM = 10
} ddprun_status;

/* Says why the calling thread's last failed call failed. It lives until that thread's next call. */
DDPRUN_C_API const char* ddprun_error_text(void);

/* ---- A worker's place in the job
 * ------------------------------------------------------------------------------ */

typedef struct ddprun_worker ddprun_worker;
typedef struct ddprun_store ddprun_store;
typedef struct ddprun_comm ddprun_comm;
typedef struct ddprun_work ddprun_work;

/* Reads the environment that ddprun or torchrun set, connects to the round's store, and to the
 * agent if there is one. Call it before the program's threads start. */
DDPRUN_C_API int ddprun_worker_create(ddprun_worker** worker);
/* Destroy the worker's communicators first. */
DDPRUN_C_API void ddprun_worker_destroy(ddprun_worker* worker);

typedef struct ddprun_place {
  int rank, local_rank, world_size, local_world_size, node_rank, num_nodes, restart_count, round;
} ddprun_place;
DDPRUN_C_API int ddprun_worker_place(const ddprun_worker* worker, ddprun_place* place);

typedef enum ddprun_phase {
  DDPRUN_START_UP = 0,
  DDPRUN_TRAIN = 1,
  DDPRUN_CHECKPOINT = 2,
  DDPRUN_EVALUATE = 3,
  DDPRUN_TEAR_DOWN = 4
} ddprun_phase;

/* Says that step `step` >= 1, counted over restarts, begins: the heartbeat by which a hang is told
 * from a long step. */
DDPRUN_C_API int ddprun_worker_begin_step(ddprun_worker* worker, uint64_t step);
DDPRUN_C_API int ddprun_worker_end_step(ddprun_worker* worker);
DDPRUN_C_API int ddprun_worker_set_phase(ddprun_worker* worker, int phase);
DDPRUN_C_API int ddprun_worker_report(ddprun_worker* worker, double loss, uint64_t num_samples);
/* Call it in place of ddprun_worker_begin_step(), on every rank. `*stop` = 1, on all ranks at the
 * same step: the job is about to lose a node or its time. Save, and exit with 75. */
DDPRUN_C_API int ddprun_worker_should_stop(ddprun_worker* worker, uint64_t step, int* stop);

/* ---- The store: keys and values are bytes
 * --------------------------------------------------------------------- */

/* A store of the caller's own: each function does one operation of c10d's Store. The thread that
 * makes a communicator over it calls them. They return a ddprun_status. wait() returns
 * DDPRUN_TIMEOUT if a key is missing after `timeout_ms`. get() is called only for keys that exist.
 * Values and error texts are handed over by ddprun_reply_set(). */
typedef struct ddprun_reply ddprun_reply;
typedef struct ddprun_store_calls {
  int (*set)(void* context, const char* key, size_t key_size, const char* value, size_t value_size,
             ddprun_reply* reply);
  int (*get)(void* context, const char* key, size_t key_size, ddprun_reply* reply);
  int (*add)(void* context, const char* key, size_t key_size, int64_t delta, int64_t* sum,
             ddprun_reply* reply);
  int (*compare_set)(void* context, const char* key, size_t key_size, const char* expected,
                     size_t expected_size, const char* desired, size_t desired_size,
                     ddprun_reply* reply);
  int (*check)(void* context, const char* key, size_t key_size, int* exists, ddprun_reply* reply);
  int (*wait)(void* context, const char* key, size_t key_size, int64_t timeout_ms,
              ddprun_reply* reply);
  int (*delete_key)(void* context, const char* key, size_t key_size, int* existed,
                    ddprun_reply* reply);
} ddprun_store_calls;
/* Copies `size` bytes: the value, or the text of the error that the function is about to return. */
DDPRUN_C_API void ddprun_reply_set(ddprun_reply* reply, const char* data, size_t size);

/* A view of `worker`'s connection, with keys that are fresh in each round. The worker must outlive
 * it. */
DDPRUN_C_API int ddprun_store_create_of_worker(ddprun_worker* worker, ddprun_store** store);
/* A connection to any c10d TCPStore server. */
DDPRUN_C_API int ddprun_store_connect(const char* host, int port, int64_t timeout_ms,
                                      ddprun_store** store);
/* `calls` is copied; `context` must outlive the store and what is made over it. */
DDPRUN_C_API int ddprun_store_create_over(const ddprun_store_calls* calls, void* context,
                                          ddprun_store** store);
DDPRUN_C_API void ddprun_store_destroy(ddprun_store* store);

/* Sets the deadline of each call; default 300 s. */
DDPRUN_C_API int ddprun_store_set_timeout(ddprun_store* store, int64_t timeout_ms);
DDPRUN_C_API int ddprun_store_set(ddprun_store* store, const char* key, const void* value,
                                  size_t size);
/* Waits until the key exists. Free the value with ddprun_free(). A zero byte follows it, which
 * `*size` doesn't count. */
DDPRUN_C_API int ddprun_store_get(ddprun_store* store, const char* key, char** value, size_t* size);
DDPRUN_C_API int ddprun_store_add(ddprun_store* store, const char* key, int64_t delta,
                                  int64_t* sum);
/* As c10d's: `*value` is the value that the key has afterwards. Free it with ddprun_free(). */
DDPRUN_C_API int ddprun_store_compare_set(ddprun_store* store, const char* key,
                                          const char* expected, const char* desired, char** value,
                                          size_t* size);
DDPRUN_C_API int ddprun_store_check(ddprun_store* store, const char* key, int* exists);
DDPRUN_C_API int ddprun_store_wait(ddprun_store* store, const char* key);
DDPRUN_C_API int ddprun_store_delete(ddprun_store* store, const char* key, int* existed);
DDPRUN_C_API void ddprun_free(void* memory);

/* ---- The host communicator (worker_sdk/core/communicator.h has each call's contract)
 * -------------------------- */

typedef enum ddprun_dtype {
  DDPRUN_FLOAT32 = 0,
  DDPRUN_FLOAT64 = 1,
  DDPRUN_FLOAT16 = 2,
  DDPRUN_BFLOAT16 = 3,
  DDPRUN_INT8 = 4,
  DDPRUN_UINT8 = 5,
  DDPRUN_INT32 = 6,
  DDPRUN_INT64 = 7,
  DDPRUN_BOOL = 8,
  DDPRUN_FLOAT8_E4M3 = 9,
  DDPRUN_FLOAT8_E5M2 = 10
} ddprun_dtype;

typedef enum ddprun_op {
  DDPRUN_SUM = 0,
  DDPRUN_AVERAGE = 1,
  DDPRUN_MIN = 2,
  DDPRUN_MAX = 3,
  DDPRUN_PRODUCT = 4
} ddprun_op;

/* `count` elements of `dtype`, contiguous, in this process' memory. */
typedef struct ddprun_buffer {
  void* data;
  size_t count;
  int dtype;
} ddprun_buffer;

typedef struct ddprun_comm_options {
  int rank, size;
  const char* key_prefix;  /* starts its keys in the store: fresh for each communicator, the
                              same on every rank */
  int64_t timeout_ms;      /* of each operation; 0: 300 s */
  int64_t init_timeout_ms; /* until all ranks have joined; 0: 300 s */
} ddprun_comm_options;

/* Makes a communicator of all ranks of the worker's job. Collective. */
DDPRUN_C_API int ddprun_comm_create(ddprun_worker* worker, int64_t timeout_ms, ddprun_comm** comm);
/* Makes a communicator of the ranks that share the prefix, over any store. Collective. Ranks of one
 * machine find each other by its boot, network namespace and GROUP_RANK (if set), and share memory.
 * Others meet at DDPRUN_NODE_ADDR; if that is not set, at the address from which MASTER_ADDR is
 * reached. Later only ddprun_comm_split() uses the store, which must still work then.
 *
 * Several threads may call such a communicator, but not beside ddprun_group(), _split() and
 * _destroy(). Their calls begin one at a time. While one waits, others begin. */
DDPRUN_C_API int ddprun_comm_create_over(ddprun_store* store, const ddprun_comm_options* options,
                                         ddprun_comm** comm);
/* Makes the communicator of ranks[0 … num_ranks), this one among them. Collective. `name` is the
 * group's name in messages. */
DDPRUN_C_API int ddprun_comm_split(ddprun_comm* comm, const int* ranks, int num_ranks,
                                   const char* name, ddprun_comm** group);
/* Ends operations under way. Works that are left return an error, and must still be destroyed. */
DDPRUN_C_API void ddprun_comm_destroy(ddprun_comm* comm);
DDPRUN_C_API int ddprun_comm_rank(const ddprun_comm* comm);
DDPRUN_C_API int ddprun_comm_size(const ddprun_comm* comm);
/* Ends every operation, here and on the other ranks. Any thread may call it. */
DDPRUN_C_API void ddprun_comm_abort(ddprun_comm* comm, const char* reason);

typedef struct ddprun_call {
  int64_t timeout_ms; /* 0: the communicator's */
  int tag; /* for ddprun_send, ddprun_recv, ddprun_recv_any: a message goes to a receive with
              the same tag; >= 0 */
} ddprun_call;

/* `call` may be NULL. With `work` the operation is asynchronous, and owns its buffers until
 * ddprun_work_wait() has returned. If `work` is NULL, it has ended when the call returns. */
DDPRUN_C_API int ddprun_all_reduce(ddprun_comm* comm, ddprun_buffer buffer, int op,
                                   const ddprun_call* call, ddprun_work** work);
DDPRUN_C_API int ddprun_reduce(ddprun_comm* comm, ddprun_buffer buffer, int op, int root,
                               const ddprun_call* call, ddprun_work** work);
DDPRUN_C_API int ddprun_broadcast(ddprun_comm* comm, ddprun_buffer buffer, int root,
                                  const ddprun_call* call, ddprun_work** work);
DDPRUN_C_API int ddprun_all_gather(ddprun_comm* comm, ddprun_buffer input, ddprun_buffer output,
                                   const ddprun_call* call, ddprun_work** work);
DDPRUN_C_API int ddprun_reduce_scatter(ddprun_comm* comm, ddprun_buffer input, ddprun_buffer output,
                                       int op, const ddprun_call* call, ddprun_work** work);
DDPRUN_C_API int ddprun_send(ddprun_comm* comm, ddprun_buffer buffer, int peer,
                             const ddprun_call* call, ddprun_work** work);
DDPRUN_C_API int ddprun_recv(ddprun_comm* comm, ddprun_buffer buffer, int peer,
                             const ddprun_call* call, ddprun_work** work);
/* Receives from any rank. `*source` is written when the operation has ended, and must live as long
 * as the buffer. */
DDPRUN_C_API int ddprun_recv_any(ddprun_comm* comm, ddprun_buffer buffer, int* source,
                                 const ddprun_call* call, ddprun_work** work);
/* inputs[r] goes to rank r, outputs[r] comes from it; each has one entry per rank. Parts without
 * elements are not sent. */
DDPRUN_C_API int ddprun_all_to_all(ddprun_comm* comm, const ddprun_buffer* inputs,
                                   const ddprun_buffer* outputs, const ddprun_call* call,
                                   ddprun_work** work);
/* Returns when every rank has called it. */
DDPRUN_C_API int ddprun_barrier(ddprun_comm* comm, const ddprun_call* call);
/* Calls `calls`, then starts together all that it asked of this communicator (with `work` NULL).
 * These messages don't wait for one another. If one of the calls is refused, none is started. */
DDPRUN_C_API int ddprun_group(ddprun_comm* comm, void (*calls)(void* context), void* context,
                              ddprun_work** work);

/* Returns the operation's status when it has ended; may be called again. */
DDPRUN_C_API int ddprun_work_wait(ddprun_work* work);
/* Sets `*is_done`; never waits. */
DDPRUN_C_API int ddprun_work_test(ddprun_work* work, int* is_done);
/* An operation that has not ended goes on; its buffers must live until the communicator is
 * destroyed. */
DDPRUN_C_API void ddprun_work_destroy(ddprun_work* work);

#ifdef __cplusplus
}
#endif

#endif /* DDPRUN_C_H */
